"""Write tables in blocks, as CSV or Parquet."""

import codecs
import gzip
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from dpscp.data.csv_format import CSVFormat
from dpscp.data.frames import SchemaError
from dpscp.data.model_files import open_atomically
from dpscp.data.sources.files import TableError, find_kind

# The separator between the labels of a set in a CSV cell.
_LABEL_MARK = "|"
# A spreadsheet would run such a cell as a formula. The pattern includes leading apostrophes, so that the removal of one
# always restores the text.
_FORMULA = r"^'*[=+\-@\t\r]"


@contextmanager
def open_writer(
    path: Path, csv_format: CSVFormat | None = None, *, raw: bool = False
) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes Arrow batches as CSV or Parquet, by file name.

    The file appears when it is complete; a failure leaves no file. Without ``raw``, a text in CSV that a spreadsheet
    would run as a formula gets a leading apostrophe; a number does not.
    """
    written, kind = csv_format or CSVFormat(), find_kind(path.name)
    if kind not in ("csv", "parquet"):
        raise TableError(f"{str(path)!r} cannot be written; use a name that ends in .csv, .csv.gz, .tsv or .parquet")
    with open_atomically(path) as file, ExitStack() as stack:
        if kind == "parquet":
            yield _parquet_writer(file, stack)
        elif path.name.lower().endswith(".gz"):
            yield _csv_writer(stack.enter_context(gzip.GzipFile("", "wb", 6, file)), path, written, raw=raw)
        else:
            yield _csv_writer(file, path, written, raw=raw)


def _parquet_writer(file: Any, stack: ExitStack) -> Callable[[Any], None]:
    import pyarrow.parquet as pq

    writer: Any = None

    def write(block: Any) -> None:
        nonlocal writer
        writer = writer or stack.enter_context(pq.ParquetWriter(file, block.schema))
        writer.write_batch(block)

    return write


def _csv_writer(file: Any, path: Path, csv_format: CSVFormat, *, raw: bool) -> Callable[[Any], None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    separator, has_header = csv_format.separator_in(path.name), False
    is_utf8 = codecs.lookup(csv_format.encoding).name == "utf-8"
    # writes a byte-order mark at the start of the file only
    encoder = codecs.getincrementalencoder(csv_format.encoding)()

    def encode(text: Any) -> Any:
        if is_utf8:
            return text
        try:
            return encoder.encode(bytes(text).decode())
        except UnicodeEncodeError:
            pass  # the message of the codec contains a cell
        raise SchemaError(f"a cell cannot be written in {csv_format.encoding}; write to a .parquet file")

    def cells(texts: Any, *, are_numbers: bool = False) -> Any:
        return _quoted(texts if raw or are_numbers else _without_formulas(texts, csv_format), separator)

    def write(block: Any) -> None:
        nonlocal has_header
        if not has_header:
            file.write(encode(separator.join(cells(pa.array(block.schema.names)).to_pylist()).encode() + b"\n"))
            has_header = True
        columns = [
            cells(_as_text(name, column, csv_format), are_numbers=pa.types.is_primitive(column.type))
            for name, column in zip(block.schema.names, block.columns, strict=True)
        ]
        lines = pc.binary_join_element_wise(*columns, separator, null_handling="replace", null_replacement="")
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        file.write(encode(pc.binary_join(whole, "\n")[0].as_buffer()))
        file.write(encode(b"\n"))

    return write


def _as_text(name: str, column: Any, csv_format: CSVFormat) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_float = pa.types.is_floating(column.type)
    if is_float:  # NaN becomes an empty cell
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        if pa.types.is_list(column.type):
            return _join_labels(column)
        texts = column.cast(pa.string())
        return pc.replace_substring(texts, ".", csv_format.decimal) if is_float else texts
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        pass
    raise SchemaError(f"column {name!r} cannot be written as CSV; drop it, or write to a .parquet file")


def _join_labels(sets: Any) -> Any:
    """Write each list of labels as one text, ``a|b``.

    A ``|`` inside a label gets a backslash.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    labels = sets.values.cast(pa.string())
    for mark in ("\\", _LABEL_MARK):
        labels = pc.replace_substring(labels, mark, "\\" + mark)
    escaped = pa.ListArray.from_arrays(sets.offsets, labels, mask=pc.is_null(sets))
    return pc.binary_join(escaped, _LABEL_MARK)


def _without_formulas(texts: Any, csv_format: CSVFormat) -> Any:
    """Put an apostrophe before each text that a spreadsheet runs as a formula.

    Numbers get none.
    """
    import pyarrow.compute as pc

    is_formula = pc.match_substring_regex(texts, _FORMULA)
    if not pc.any(is_formula).as_py():
        return texts
    is_formula = pc.and_not(is_formula, pc.match_substring_regex(texts, csv_format.number_pattern))
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts)


def _quoted(texts: Any, separator: str) -> Any:
    """Quote the texts that contain a separator, a quote or a line end."""
    import pyarrow.compute as pc

    content = b"".join(bytes(buffer) for buffer in texts.buffers()[-1:] if buffer is not None)
    marks = (separator, '"', "\r", "\n")
    if not any(mark.encode() in content for mark in marks):
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    needed = [pc.match_substring(texts, mark) for mark in marks]
    return pc.if_else(reduce(pc.or_, needed), quoted, texts)
