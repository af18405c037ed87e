"""Find the files of a table, and read their columns as Arrow batches.

Nothing is skipped: a file or row that cannot be read is refused. Errors have messages of this package, because messages
of the readers may contain cells or line numbers.
"""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import chain, product
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from dpscp._base.suggestions import suggest
from dpscp.data.csv_format import CSVFormat
from dpscp.data.frames import label_text

# Kinds of files by the ends of their names.
_KINDS = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "ipc"),
    ".orc": "orc",
    ".xlsx": "excel",
}
# The expected format of a file, in the message if it cannot be read.
_FORMATS = {
    "csv": "CSV; check that all rows have the same length, and the separator",
    "parquet": "Parquet; it may be damaged, or have another format",
    "ipc": "an Arrow file; it may be damaged, or have another format",
    "orc": "ORC; it may be damaged, or have another format",
    "excel": "an Excel file; it may be damaged, or have another format",
}
# Numbers in a block: enough that reading is a small part of the work, and few enough that a block and copies are small.
BLOCK_NUMBERS = 2**21
# Bytes of a text file, or of a column of Parquet, that are read at once. A record must fit into them.
BLOCK_BYTES, _COLUMN_BYTES = 8 * 2**20, 2**20
# Arrow reads no more than one batch at a time.
ONE_BATCH = {"use_threads": False, "batch_readahead": 0, "fragment_readahead": 0}
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/.*")
# Parts of a URL that may be a key: the part before the host, and the options at the end.
_SECRETS = re.compile(r"(?<=://)[^/@]*@|(?<!/)\?[^/]*=.*$")
# The note of an error that has a place in a file. The place depends on the records, so no error names it.
SEE_CHECK = "`dpscp check TABLE --schema FILE` names the place in it, for the curator only."
_WILDCARDS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}


class TableError(ValueError):
    """A table cannot be read; nothing in the text comes from its records."""


def is_path(table: Any) -> bool:
    """Return whether this is a path, a URL or a pattern."""
    return isinstance(table, str | PathLike)


def are_paths(table: Any) -> bool:
    """Return whether this is a list of paths, which a list of texts may be too."""
    return isinstance(table, list | tuple) and bool(table) and all(map(is_path, table))


def is_url(table: str | PathLike[str]) -> bool:
    """Return whether this names a file system, such as ``s3://bucket/name``.

    A ``Path`` of it keeps one slash only.
    """
    return _URL.fullmatch(str(table)) is not None


def without_keys(table: str | PathLike[str]) -> str:
    """Return a path, or a URL without parts that may be a key, for messages."""
    return _SECRETS.sub("", _usual_url(table)) if is_url(table) else str(table)


def _usual_url(table: str | PathLike[str]) -> str:
    """Return a URL with both slashes after the scheme."""
    scheme, place = str(table).replace("\\", "/").split(":", 1)
    return f"{scheme}://{'/' if scheme == 'file' else ''}{place.lstrip('/')}"


def find_kind(name: str) -> str:
    """Return the kind of a file by its name, or refuse it.

    Kinds are "csv", "parquet", "ipc", "orc" and "excel".
    """
    found = [kind for ending, kind in _KINDS.items() if name.lower().endswith(ending)]
    if not found:
        raise TableError(
            f"the name of {without_keys(name)!r} has no ending of a table; use one of {', '.join(_KINDS)}. Save "
            "another kind of spreadsheet as CSV UTF-8"
        )
    return found[0]


@dataclass(frozen=True)
class TableFile:
    """A file with records in a fixed order.

    ``keys`` are columns with one value, from the names of its folders (``year=2024``).
    """

    system: Any
    path: str
    csv_format: CSVFormat
    keys: dict[str, str | None] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The file in a message."""
        return repr(without_keys(self.path))

    @property
    def is_csv(self) -> bool:
        """Whether cell types and marks are declared because the file has none."""
        return find_kind(self.path) == "csv"

    @property
    def is_text(self) -> bool:
        """Whether the column names are the first line, which may also be a record."""
        return find_kind(self.path) in ("csv", "excel")

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [*self._guard(self._names), *self.keys]

    def _names(self) -> list[str]:
        import pyarrow.parquet as pq

        if self.is_csv:
            with self.open_text() as file:
                return next(csv.reader(file, delimiter=self.csv_format.separator_in(self.path)), [])
        if find_kind(self.path) == "parquet":
            with self.system.open_input_file(self.path) as file:
                return list(pq.read_schema(file).names)
        if find_kind(self.path) == "excel":
            return list(self._sheet().columns)
        return list(self._fragment().physical_schema.names)

    def open_text(self) -> Any:
        """Open a CSV file as text, decompressed if needed."""
        codec = self._codec  # read this first, because some file systems return one object for all readers of a file
        return io.TextIOWrapper(self.system.open_input_stream(self.path), encoding=codec, newline="")

    @cached_property
    def _codec(self) -> str:
        with self.system.open_input_stream(self.path) as stream:
            return self.csv_format.codec_of(stream.read(4))

    def _fragment(self) -> Any:
        import pyarrow.dataset as ds

        kind = ds.IpcFileFormat() if find_kind(self.path) == "ipc" else ds.OrcFileFormat()
        return kind.make_fragment(self.path, self.system)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[tuple[float, Any]]:
        """Yield the share of the file that was read, and the next Arrow batch.

        A batch has at most ``rows`` rows. CSV cells stay texts (an empty one is missing).
        """
        import pyarrow as pa

        stored = [name for name in names if name not in self.keys]
        readers = {"csv": self._read_csv, "parquet": self._read_parquet, "excel": self._read_excel}
        read = readers.get(find_kind(self.path), self._read_fragment)
        found = self._guard(lambda: read(stored, rows))
        while (item := self._guard(lambda: next(found, None))) is not None:
            share, batch = item
            for name in self.keys:
                if name in names:
                    value = pa.scalar(self.keys[name], pa.string())
                    batch = batch.append_column(name, pa.repeat(value, len(batch)))
            for start in range(0, len(batch), rows):
                yield share, batch.slice(start, rows)

    def _read_parquet(self, names: Sequence[str], rows: int) -> Iterator[tuple[float, Any]]:
        with self._open_parquet() as file:
            n_rows, total = 0, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
                n_rows += len(batch)
                yield n_rows / total, batch

    @contextmanager
    def _open_parquet(self) -> Iterator[Any]:
        """Open a Parquet file that is read piece by piece, with its checksums."""
        import pyarrow.parquet as pq

        # a small buffer for each column, because by default the reader keeps everything it has read
        settings = {"buffer_size": _COLUMN_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        with self.system.open_input_file(self.path) as opened, pq.ParquetFile(opened, **settings) as file:
            yield file

    def _read_csv(self, names: Sequence[str], _: int) -> Iterator[tuple[float, Any]]:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        # Arrow skips the mark at the start of UTF-8. The codec is read before the file is opened, see ``open_text``.
        encoding = "utf8" if codecs.lookup(self._codec).name in ("utf-8", "utf-8-sig") else self._codec
        is_compressed = self.path.lower().endswith(".gz")
        with self.system.open_input_file(self.path) as file:
            reader = arrow_csv.open_csv(
                pa.CompressedInputStream(file, "gzip") if is_compressed else file,
                arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, encoding=encoding),
                arrow_csv.ParseOptions(delimiter=self.csv_format.separator_in(self.path), newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    include_columns=list(names),
                    strings_can_be_null=True,
                    null_values=[""],
                ),
            )
            for batch in reader:
                yield file.tell() / max(1, file.size()), batch

    def _read_excel(self, names: Sequence[str], _: int) -> Iterator[tuple[float, Any]]:
        import pyarrow as pa

        texts = pa.schema([(name, pa.string()) for name in names])
        yield 1.0, pa.RecordBatch.from_pandas(self._sheet()[list(names)], texts, preserve_index=False)

    def _sheet(self) -> Any:
        """Return the lines of the only sheet after the first one, cells as text.

        Empty lines are left out.
        """
        import pandas as pd

        with self.system.open_input_file(self.path) as file:
            sheets = pd.read_excel(file, sheet_name=None, header=None, dtype=object, keep_default_na=False)
        if len(sheets) != 1:
            raise TableError(f"{self.said} has several sheets; save the one with the records to its own file")
        lines = next(iter(sheets.values())).map(_cell_text)
        return lines[1:].set_axis(lines.iloc[0].fillna(""), axis=1).dropna(how="all")

    def _read_fragment(self, names: Sequence[str], rows: int) -> Iterator[tuple[float, Any]]:
        fragment, n_rows = self._fragment(), 0
        total = max(1, fragment.count_rows())
        for batch in fragment.to_batches(columns=list(names), batch_size=rows, **ONE_BATCH):
            n_rows += len(batch)
            yield n_rows / total, batch

    def _guard(self, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, or raise an error without any record."""
        failure: Exception
        try:
            return work()
        except (MemoryError, TableError):
            raise
        except Exception as error:  # raised again outside the handler, without the original text
            failure = error
        if isinstance(failure, UnicodeError) or "UTF8" in str(failure):
            raise TableError(
                f"{self.said} is not written in {self.csv_format.encoding}. Declare its encoding, for example cp1252 "
                '(Excel on Windows) or latin-1: encoding = "cp1252" under [csv] in the schema, or --encoding cp1252 on '
                "the command line"
            )
        if "straddling" in str(failure):
            raise TableError(
                f"{self.said} contains a record of more than {BLOCK_BYTES // 2**20} megabytes; remove or shorten it"
            )
        if isinstance(failure, ImportError):
            raise TableError(
                f"{self.said} needs pandas, pyarrow and, if it is a spreadsheet, openpyxl; pip install "
                "'dpscp[tables]', or save the file as CSV UTF-8"
            )
        unreadable = TableError(f"{self.said} cannot be read as {_FORMATS[find_kind(self.path)]}")
        unreadable.add_note(SEE_CHECK)
        raise unreadable

    def find_damage(self) -> str:
        """Return the line, or row group and column, with the error; "" if unknown.

        The result depends on the records and is for the curator only.
        """
        find = {"csv": self._find_uneven_line, "parquet": self._find_damaged_group}.get(find_kind(self.path))
        found = ""
        with suppress(Exception):  # without a header or an end the place is unknown
            found = find() if find is not None else ""
        return f"{found} of {self.said}" if found else ""

    def _find_uneven_line(self) -> str:
        with self.open_text() as file:
            records = csv.reader(file, delimiter=self.csv_format.separator_in(self.path))
            width = len(next(records))
            is_uneven = any(len(cells) not in (0, width) for cells in records)
            return f"line {records.line_num:,}" if is_uneven else ""

    def _find_damaged_group(self) -> str:
        with self._open_parquet() as file:
            for group, name in product(range(file.num_row_groups), file.schema_arrow.names):
                try:
                    file.read_row_group(group, columns=[name], use_threads=False)
                except Exception:
                    return f"row group {group} (the first is 0), column {name!r}"
        return ""


def _cell_text(cell: Any) -> str | None:
    """Return a cell of a spreadsheet as a CSV file has it."""
    if isinstance(cell, str):
        return cell or None
    return cell.isoformat() if isinstance(cell, date) else label_text(cell)


def list_files(table: Any, csv_format: CSVFormat) -> list[TableFile]:
    """Return the files of a path, URL, pattern, folder or list, in a fixed order.

    Files of a folder or pattern are in the order of their names, and all have one format.
    """
    if isinstance(table, list | tuple):
        found = list(chain.from_iterable(list_files(one, csv_format) for one in table))
        if len({file.path for file in found}) != len(found):
            raise TableError("the list of files has a file twice, so its records would count twice; remove one of them")
    else:
        system, path, said = _locate(table)
        found = [TableFile(system, name, csv_format, keys) for name, keys in _find_files(system, path, said)]
    if len({find_kind(file.path) for file in found}) > 1:
        raise TableError("the files of a table must have one format; convert some, or pass those of one format only")
    return found


def _locate(table: str | PathLike[str]) -> tuple[Any, str, str]:
    """Return the file system, the path in it, and the text of both in messages."""
    try:
        from pyarrow import fs
    except ImportError:  # pragma: no cover (the test environment has it)
        raise TableError("a table needs pandas and pyarrow; install them with pip install 'dpscp[tables]'") from None
    if not str(table):
        raise TableError("the path of the table is empty; give the path of a file or folder")
    if not is_url(table):
        return fs.LocalFileSystem(), Path(table).as_posix(), str(table)
    url, said, reason = _usual_url(table), without_keys(table), ""
    try:
        import pyarrow as pa

        try:
            return (*fs.FileSystem.from_uri(url), said)
        except pa.ArrowInvalid:  # a file system that Arrow does not implement
            import fsspec

            opened, path = fsspec.core.url_to_fs(url)
            return fs.PyFileSystem(fs.FSSpecHandler(opened)), path, said
    except Exception as error:  # messages of file systems may name accounts and keys
        reason = type(error).__name__
    raise TableError(
        f"{said!r} cannot be opened ({reason}); check the address and the credentials, and install the package of its "
        "file system for fsspec (s3fs, gcsfs, adlfs)"
    )


def _find_files(system: Any, path: str, said: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the files at a path, with the columns that their folders define."""
    from pyarrow import fs

    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        find_kind(path)
        return [(path, {})]
    is_pattern = info.type == fs.FileType.NotFound and any(mark in path for mark in "*?")
    fixed = list(PurePosixPath(path).parts)
    if is_pattern:
        fixed = fixed[: next(place for place, part in enumerate(fixed) if "*" in part or "?" in part)]
    base = str(PurePosixPath(*fixed))
    if system.get_file_info(base).type != fs.FileType.Directory:
        folder, name = PurePosixPath(path).parent, PurePosixPath(path).name
        beside = system.get_file_info(fs.FileSelector(str(folder), allow_not_found=True))
        raise FileNotFoundError(f"file {said!r} does not exist{suggest(name, [one.base_name for one in beside])}")
    listed = system.get_file_info(fs.FileSelector(base, recursive=True))
    files = sorted(str(PurePosixPath(one.path)) for one in listed if one.type == fs.FileType.File)
    if is_pattern:
        pieces = re.split(r"(\*\*/|\*|\?)", path)
        pattern = re.compile("".join(_WILDCARDS.get(piece, re.escape(piece)) for piece in pieces))
        files = [file for file in files if pattern.fullmatch(file)]
    below = {file: PurePosixPath(file).relative_to(base).parts for file in files}
    files = [file for file in files if not _is_marker(file, below[file])]
    if not files:
        raise TableError(f"{said!r} contains no table; give files that end in one of {', '.join(_KINDS)}")
    for file in files:
        if any(part.startswith((".", "_")) for part in below[file]):
            raise TableError(
                f"{without_keys(file)!r} is hidden or unfinished, so it is not clear whether it belongs to the table; "
                "move it, or list the files"
            )
        find_kind(file)
    return [(file, _folder_keys(below[file][:-1])) for file in files]


def _is_marker(file: str, parts: Sequence[str]) -> bool:
    """Return whether a file contains no records by convention.

    Examples: ``_SUCCESS``, ``_metadata``, ``.part.crc``.
    """
    is_hidden = any(part.startswith((".", "_")) for part in parts)
    return is_hidden and not any(file.lower().endswith(ending) for ending in _KINDS)


def _folder_keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the columns of folders such as ``year=2024``.

    Hive has a special name for a missing value.
    """
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(name): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, value in pairs}
