"""Read person ids from every kind of source; equal ids are one person.

If equal ids were read as different, one person would become several, each with a privacy loss of their own. If
different ids were read as equal, several persons would share the noise that hides one. So ids are text, integers,
booleans, days or instants, of one kind in a column. Other ids are refused: floating-point numbers (several integers
may round to one), missing ids (the person is unknown), tuples and other objects (their class defines equality).

No message contains an id.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What tables, R, SQL and `astype(str)` write for a missing id.
_MISSING_TEXTS = frozenset(("", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?", "."))
_LARGEST = 2**63
_DAY_UNITS, _INSTANT_UNITS = ("D",), ("h", "m", "s", "ms", "us", "ns")
_NANOSECONDS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_MILLISECONDS = 86_400_000
_ALLOWED = "text, integers, booleans or dates, as a list, an array, or a column of pandas, polars or Arrow"
_FLOAT_IDS = (
    "persons has floating-point numbers, which can merge different integer ids. Read the ids as integers or as text "
    "(pandas reads integers with missing values as dtype 'Int64')"
)
_OBJECT_IDS = (
    "persons must be text, integers, booleans or dates, and not other objects (tuples, bytes, decimal numbers, "
    "tensors, your own classes). Convert each id to text, for example f'{clinic}/{patient}'"
)
_MISSING_IDS = (
    "persons has a missing id (None, NaN, NaT, null, empty text, or a mark such as 'NA'). Give each row the id of its "
    "person, or drop the rows of unknown persons"
)
_MIXED_IDS = (
    "persons mixes ids of different kinds (text, integers, booleans, dates), and '7' is not 7. Convert all ids to one "
    "kind"
)


class IdKind(Enum):
    """The kind of the ids of a column; ids of two kinds are never compared."""

    TEXT = "text"
    INTEGER = "integers"
    BOOLEAN = "booleans"
    DAY = "days"
    INSTANT = "instants without a time zone"
    ZONED = "instants with a time zone"


@dataclass(frozen=True)
class PersonIds:
    """Hold one key for each row; equal keys of one kind are one person.

    Attributes
    ----------
    kind : IdKind, or None without rows
    keys : array of shape (n,)
        Strings for text. Otherwise whole numbers: int64, or Python integers if one does not fit. Days count from 1970,
        instants count nanoseconds from then.
    """

    kind: IdKind | None
    keys: NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> "PersonIds":
        return PersonIds(self.kind, self.keys[rows])  # an empty part keeps its kind

    @staticmethod
    def joined(parts: Sequence["PersonIds"]) -> "PersonIds":
        """Join the ids of several parts of a table; refuse parts of two kinds."""
        kinds = {part.kind for part in parts} - {None}
        if len(kinds) > 1:
            raise ValueError(_MIXED_IDS)
        kind = next(iter(kinds), None)
        found = [part.keys for part in parts if len(part)]
        return PersonIds(kind, np.concatenate(found) if found else np.empty(0, dtype=np.int64))

    def numbers(self) -> NDArray[np.int64]:
        """Number each row's person, in the order in which persons first appear, (n,)."""
        known: dict[Any, int] = {}
        return np.fromiter((known.setdefault(key, len(known)) for key in self.keys.tolist()), np.int64, len(self))

    def hashes(self) -> NDArray[np.uint64]:
        """Hash each row's id, (n,); equal ids have equal hashes in every process."""
        from pandas.util import hash_array

        if self.kind is IdKind.TEXT:
            return np.asarray(hash_array(self.keys, categorize=False))
        # two's complement: the key 7 has the same hash in a column with keys that do not fit into int64
        low = [key % 2**64 for key in self.keys.tolist()] if self.keys.dtype == object else self.keys
        return np.asarray(hash_array(np.asarray(low).astype(np.uint64), categorize=False))


def read_person_ids(persons: Any) -> PersonIds:
    """Read one id for each row; refuse ids that may split or merge persons.

    Parameters
    ----------
    persons : list, NumPy array, column of pandas, polars or Arrow, or torch tensor of integers or booleans
        A category or dictionary is read as its values.

    Returns
    -------
    PersonIds
    """
    if isinstance(persons, PersonIds):
        return persons
    if isinstance(persons, list | tuple | range):
        found = _read_objects(persons)
    elif isinstance(persons, np.ndarray):
        found = _read_array(persons)
    elif _is_of(persons, "torch", "Tensor"):
        found = _read_tensor(persons)
    elif _is_of(persons, "pandas", "Series", "Index", "api.extensions.ExtensionArray"):
        found = _read_pandas(persons)
    elif _is_of(persons, "polars", "Series"):
        found = _read_polars(persons)
    elif _is_of(persons, "pyarrow", "Array", "ChunkedArray"):
        found = _read_arrow(persons)
    else:
        raise TypeError(f"persons must have one id for each row of X: {_ALLOWED}, or a torch tensor of integers")
    return found if len(found) else PersonIds(None, np.empty(0, dtype=np.int64))


def _is_of(value: Any, library: str, *names: str) -> bool:
    """Return whether a value has one of these classes, without importing the library."""
    module = sys.modules.get(library)
    return module is not None and any(isinstance(value, attrgetter(name)(module)) for name in names)


# ---- lists


def _read_objects(ids: Sequence[Any]) -> PersonIds:
    if any(map(_is_missing, ids)):
        raise ValueError(_MISSING_IDS)
    kinds = {_find_kind(one) for one in ids}
    if not kinds:
        return PersonIds(None, np.empty(0, dtype=np.int64))
    if len(kinds) > 1:
        raise ValueError(_MIXED_IDS)
    (kind,) = kinds
    if kind is IdKind.TEXT:
        return _read_texts(ids)
    read = int if kind in (IdKind.INTEGER, IdKind.BOOLEAN) else _convert_time
    return PersonIds(kind, _pack_integers([read(one) for one in ids]))


def _find_kind(one: Any) -> IdKind:
    """Return the kind of one id; refuse subclasses, which may compare differently."""
    if type(one) in (str, np.str_):
        return IdKind.TEXT
    if type(one) in (bool, np.bool_):
        return IdKind.BOOLEAN
    if type(one) is int or (isinstance(one, np.integer) and not isinstance(one, np.timedelta64)):
        return IdKind.INTEGER
    if isinstance(one, np.datetime64):
        return _find_time_kind(one.dtype)
    if type(one) is date:
        return IdKind.DAY
    if type(one) is datetime or _is_timestamp(one):
        return IdKind.INSTANT if one.tzinfo is None else IdKind.ZONED
    if isinstance(one, float | complex | np.inexact):
        raise ValueError(_FLOAT_IDS)
    raise TypeError(_OBJECT_IDS)


def _is_missing(one: Any) -> bool:
    pandas = sys.modules.get("pandas")
    if one is None or (pandas is not None and (one is pandas.NA or one is pandas.NaT)):
        return True
    if isinstance(one, np.datetime64 | np.timedelta64):
        return bool(np.isnat(one))
    return isinstance(one, float | np.floating) and bool(np.isnan(one))


def _is_timestamp(one: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and type(one) is pandas.Timestamp


def _convert_time(one: Any) -> int:
    """Return days since 1970 of a day, nanoseconds since then of an instant."""
    if isinstance(one, np.datetime64):
        return int(_convert_times(np.asarray(one)[None])[0])
    if type(one) is date:
        return one.toordinal() - date(1970, 1, 1).toordinal()
    begin = datetime(1970, 1, 1, tzinfo=None if one.tzinfo is None else UTC)
    if type(one) is datetime:
        return (one - begin) // timedelta(microseconds=1) * 1000
    plain = one if one.tzinfo is None else one.tz_convert("UTC").tz_localize(None)
    return int(_convert_times(np.asarray(plain.to_datetime64())[None])[0])


def _read_texts(ids: Sequence[Any]) -> PersonIds:
    texts = [str(one) for one in ids]
    if any(text.strip().lower() in _MISSING_TEXTS for text in set(texts)):
        raise ValueError(_MISSING_IDS)
    characters = set("".join(texts))
    if "\0" in characters or any("\ud800" <= character <= "\udfff" for character in characters):
        raise ValueError(
            "persons has text with NUL characters or unpaired surrogates, which some tables cannot distinguish. Write "
            "the ids without them"
        )
    keys = np.empty(len(texts), dtype=object)
    keys[:] = texts
    return PersonIds(IdKind.TEXT, keys)


def _pack_integers(numbers: Sequence[int]) -> NDArray[Any]:
    """Pack integers as int64, or as Python integers if one is too large."""
    if all(-_LARGEST <= number < _LARGEST for number in numbers):
        return np.array(numbers, dtype=np.int64)
    keys = np.empty(len(numbers), dtype=object)
    keys[:] = numbers
    return keys


# ---- NumPy and torch


def _read_array(ids: NDArray[Any]) -> PersonIds:
    if ids.ndim != 1:
        raise TypeError("persons must have one id for each row of X: pass a list, a one-dimensional array or a column")
    if isinstance(ids, np.ma.MaskedArray):
        if np.ma.getmaskarray(ids).any():
            raise ValueError(_MISSING_IDS)
        ids = ids.filled()
    kind = ids.dtype.kind
    if kind in "iu":
        large = kind == "u" and bool((ids >= _LARGEST).any())
        return PersonIds(IdKind.INTEGER, _pack_integers(ids.tolist()) if large else ids.astype(np.int64))
    if kind == "b":
        return PersonIds(IdKind.BOOLEAN, ids.astype(np.int64))
    if kind == "M":
        if np.isnat(ids).any():
            raise ValueError(_MISSING_IDS)
        return PersonIds(_find_time_kind(ids.dtype), _convert_times(ids))
    if kind in "fc":
        raise ValueError(_MISSING_IDS if np.isnan(ids).any() else _FLOAT_IDS)
    if kind in "UOT":
        return _read_objects(ids.tolist())
    raise TypeError(_OBJECT_IDS)


def _find_time_kind(dtype: Any) -> IdKind:
    unit, count = np.datetime_data(dtype)
    if count != 1 or unit not in (*_DAY_UNITS, *_INSTANT_UNITS):
        raise TypeError(
            f"persons has dates in units of {count} {unit!r}; convert them to days (datetime64[D]), or to instants in "
            "units from hours to nanoseconds"
        )
    return IdKind.DAY if unit in _DAY_UNITS else IdKind.INSTANT


def _convert_times(ids: NDArray[Any]) -> NDArray[Any]:
    unit, _ = np.datetime_data(ids.dtype)
    counts = ids.astype(np.int64)
    factor = _NANOSECONDS.get(unit, 1)
    if factor == 1 or not len(counts) or int(np.abs(counts.astype(object)).max()) * factor < _LARGEST:
        return np.asarray(counts * factor)
    return _pack_integers([count * factor for count in counts.tolist()])


def _read_tensor(ids: Any) -> PersonIds:
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(_FLOAT_IDS)
    return _read_array(ids.detach().cpu().numpy())


# ---- columns of frames


def _read_pandas(ids: Any) -> PersonIds:
    import pandas as pd

    if isinstance(ids, pd.MultiIndex):
        raise TypeError(_OBJECT_IDS)
    values = ids.array if isinstance(ids, pd.Series | pd.Index) else ids
    if isinstance(values.dtype, pd.SparseDtype):
        values = values.to_dense()
    if isinstance(values.dtype, np.dtype) or isinstance(values, pd.arrays.NumpyExtensionArray):
        return _read_array(np.asarray(values))
    import pyarrow as pa

    if isinstance(values.dtype, pd.CategoricalDtype) and not values.isna().any():
        return read_person_ids(values.dtype.categories)[np.asarray(values.codes)]
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError):
        column = None
    if column is None:  # outside the handler: Arrow's message may hold an id
        raise TypeError(_OBJECT_IDS)
    return _read_arrow(column)


def _read_polars(ids: Any) -> PersonIds:
    import polars as pl

    if ids.dtype == pl.Object:
        return _read_objects(ids.to_list())
    return _read_arrow(ids.to_arrow())


def _read_arrow(ids: Any) -> PersonIds:
    import pyarrow as pa

    whole = pa.chunked_array([ids]) if isinstance(ids, pa.Array) else ids
    chunks = [_read_arrow_chunk(_decode_chunk(chunk)) for chunk in whole.chunks if len(chunk)]
    return PersonIds.joined(chunks)


def _decode_chunk(chunk: Any) -> Any:
    import pyarrow as pa

    while pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    if chunk.null_count or pa.types.is_null(chunk.type):
        raise ValueError(_MISSING_IDS)
    return chunk


def _read_arrow_chunk(chunk: Any) -> PersonIds:
    import pyarrow as pa

    kind, types = chunk.type, pa.types
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind):
        return _read_array(chunk.to_numpy(zero_copy_only=False))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _read_texts(chunk.to_pylist())
    if types.is_date32(kind):
        return PersonIds(IdKind.DAY, chunk.cast(pa.int32()).to_numpy().astype(np.int64))
    if types.is_date64(kind):
        milliseconds = chunk.cast(pa.int64()).to_numpy()
        if (milliseconds % _DAY_MILLISECONDS).any():
            raise TypeError("persons has days with a time of day; convert them to days (Arrow's date32) or timestamps")
        return PersonIds(IdKind.DAY, milliseconds // _DAY_MILLISECONDS)
    if types.is_timestamp(kind):
        counts = chunk.cast(pa.int64()).to_numpy().view(f"datetime64[{kind.unit}]")
        return PersonIds(IdKind.INSTANT if kind.tz is None else IdKind.ZONED, _read_array(counts).keys)
    raise TypeError(_OBJECT_IDS)
