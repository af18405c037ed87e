"""The format of a CSV file: separator, encoding, decimal mark and thousands mark.

These are public facts of the file, declared and never guessed from its records.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpscp.data.frames import ABSENT, SchemaError, refuse_unknown_keys

# A space in a number may be an ordinary space, a no-break space or a narrow space.
_SPACES = " \u00a0\u202f"
_THOUSANDS = (",", ".", "'", "\u2019", " ", "_")
_TAB_NAMES = ("tab", "\\t")
# The codecs of files that begin with a byte-order mark. The mark of UTF-32 begins with that of UTF-16.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# pandas reads it neither as a number nor as a missing value, whatever the cell was.
_NO_NUMBER = "not a number"


@dataclass(frozen=True)
class CSVFormat:
    """Declare the format of a CSV file; raise ``SchemaError`` if a mark is wrong.

    A schema holds one, as the table ``[csv]`` of its file, for all files that are read with it.

    Attributes
    ----------
    separator : str, optional
        The character between cells, or ``"tab"``. None: a tab for ``.tsv``, else a comma.
    encoding : str
        A name that Python knows, such as ``"utf-8"`` (default), ``"cp1252"`` (Excel on Windows in Western Europe) or
        ``"latin-1"``. A byte-order mark at the start of a file is recognized, whatever is declared.
    decimal : ``"."`` or ``","``
    thousands : str, optional
        The mark between groups of three digits. A space stands for every kind of space. None: no mark.
    missing : tuple of str
        Cells that stand for a missing value in every column, such as ``"k.A."`` or ``"-9"``, besides empty cells. In
        columns of numbers and dates some marks always mean missing: see ``dpscp.data.frames.ABSENT``.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.missing, list | tuple) or not all(
            isinstance(m, str) and m.strip() for m in self.missing
        ):
            raise SchemaError(f'missing of csv must be a list of texts, such as ["k.A.", "-"], got {self.missing!r}')
        object.__setattr__(self, "missing", tuple(mark.strip() for mark in self.missing))
        if self.separator in _TAB_NAMES:
            object.__setattr__(self, "separator", "\t")
        if self.thousands == "":
            object.__setattr__(self, "thousands", None)
        mark = self.separator
        if mark is not None and (not isinstance(mark, str) or len(mark) != 1 or mark in '"\r\n' or ord(mark) > 127):
            raise SchemaError(f'separator must be one character, such as ";" or "tab", got {mark!r}')
        if not isinstance(self.encoding, str) or not _is_text_encoding(self.encoding):
            raise SchemaError(
                f"encoding {self.encoding!r} is not known; use for example utf-8, cp1252 (Excel on Windows), latin-1 "
                "or utf-16"
            )
        if self.decimal not in (".", ","):
            raise SchemaError(f'decimal must be "." or ",", got {self.decimal!r}')
        if self.thousands is not None and self.thousands not in _THOUSANDS:
            raise SchemaError(f"thousands must be one of {' '.join(map(repr, _THOUSANDS))}, got {self.thousands!r}")
        if self.thousands == self.decimal:
            raise SchemaError(f"decimal and thousands must be different marks, got {self.decimal!r} for both")

    def separator_in(self, path: str) -> str:
        """Return the separator of a file: the declared one, or that of its name."""
        return self.separator or ("\t" if path.lower().endswith((".tsv", ".tsv.gz")) else ",")

    def codec_of(self, start: bytes) -> str:
        """Return the codec of a file that begins with these bytes.

        It is that of the byte-order mark, or the declared one.
        """
        return next((codec for mark, codec in _BYTE_ORDER_MARKS.items() if start.startswith(mark)), self.encoding)

    def to_dict(self) -> dict[str, Any]:
        """Return the declarations that differ from the default, as JSON values."""
        default = CSVFormat()
        found = {name: value for name, value in asdict(self).items() if value != getattr(default, name)}
        return found | ({"missing": list(self.missing)} if self.missing else {})

    @classmethod
    def from_dict(cls, data: Any) -> "CSVFormat":
        """Read the declarations of a schema file."""
        if not isinstance(data, Mapping):
            raise SchemaError('csv must be a table of declarations, for example separator = ";"')
        refuse_unknown_keys(data, [field.name for field in fields(cls)], "csv")
        return cls(**data)

    def read_cells(self, cells: Any, *, are_numbers: bool) -> Any:
        """Return an Arrow column with null for missing cells.

        Texts become numbers if ``are_numbers``.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not any(
            is_text(cells.type) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        ):
            return cells
        if self.missing:
            is_missing = pc.is_in(pc.utf8_trim_whitespace(cells), pa.array(self.missing, cells.type))
            cells = pc.if_else(is_missing, pa.scalar(None, cells.type), cells)
        return self.parse_numbers(cells) if are_numbers else cells

    def parse_numbers(self, texts: Any) -> Any:
        """Parse the cells of a numeric column, an Arrow array of texts.

        Returns
        -------
        float64 array, with null for missing numbers. If a cell is neither a number in this format nor missing, the
        result is texts, and a schema refuses
            the rows of such cells.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        usual = self.decimal == "." and self.thousands is None
        if usual:
            try:
                return texts.cast(pa.float64())
            except pa.ArrowInvalid:
                pass
        cells = pc.utf8_trim_whitespace(texts)
        absent = pc.is_in(pc.utf8_lower(cells), pa.array(ABSENT, cells.type))
        cells = pc.if_else(absent, pa.scalar(None, cells.type), cells)
        if not usual:
            cells = self._to_usual_numbers(cells)
        try:
            return cells.cast(pa.float64())
        except pa.ArrowInvalid:
            return texts if usual else cells

    def _to_usual_numbers(self, cells: Any) -> Any:
        """Rewrite numbers of this format with a decimal point, other cells as text."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_number = pc.match_substring_regex(cells, self.number_pattern)
        if self.thousands is not None:
            cells = pc.replace_substring_regex(cells, f"[{_marks(self.thousands)}]", "")
        cells = pc.replace_substring(cells, self.decimal, ".")
        return pc.if_else(is_number, cells, pa.scalar(_NO_NUMBER, cells.type))

    @property
    def number_pattern(self) -> str:
        """The regular expression of a whole cell that is a number."""
        whole = r"\d+"
        if self.thousands is not None:
            whole = rf"(\d+|\d{{1,3}}([{_marks(self.thousands)}]\d{{3}})+)"
        point = re.escape(self.decimal)
        return rf"^[+-]?(({whole}({point}\d*)?|{point}\d+)([eE][+-]?\d+)?|(?i:inf|infinity))$"


def _marks(thousands: str) -> str:
    return _SPACES if thousands == " " else re.escape(thousands)


def _is_text_encoding(name: str) -> bool:
    try:
        return "".encode(name) is not None  # refuses codecs that do not encode text
    except (LookupError, ValueError):
        return False
