"""Save and load without pickle: a zip of NumPy arrays and one JSON header.

The file (format "dpscp-model", version 1) is an uncompressed ``.npz``. ``header.json`` holds the class name, its
parameters, the model's public constants, ledger, certificates and public facts, and the names of the arrays. The other
members are the parameter arrays and the thresholds. Each member has the checksum of the zip format, which finds damage;
``digest_of`` tells one release from another. Loading reads arrays without pickle, builds only the classes named here,
and executes nothing from the file.
"""

import hashlib
import io
import json
import math
import os
import stat
import sys
import tokenize
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.feature_bounds import RowNorm
from dpscp.data.validation import NOT_PLAIN, plain
from dpscp.privacy.random_streams import secure_bytes

FORMAT = "dpscp-model"
FORMAT_VERSION = 1
_HEADER = "header.json"
_LARGEST_HEADER = 64 * 2**20
# Kinds of numbers, texts and times that an array may hold.
_KINDS = "biufcSUmM"


def write_file(path: str | PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write exactly ``path``; a failure leaves no partial file."""
    head = {"format": FORMAT, "version": FORMAT_VERSION, "arrays": list(arrays), "body": dict(header)}
    with open_atomically(path, mode=0o600) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_HEADER, json.dumps(head))
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _array_bytes(array))


def digest_of(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 digest of a header and arrays, for any order of names."""
    members = {name: hashlib.sha256(_array_bytes(array)).hexdigest() for name, array in arrays.items()}
    return hashlib.sha256(json.dumps([header, members], sort_keys=True).encode()).hexdigest()


@contextmanager
def open_atomically(path: str | PathLike[str], *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` that is renamed to it at the end.

    A failure leaves nothing. The permissions of the file are never wider than ``mode``, the umask and those of a file
    that it replaces.
    """
    target = os.path.abspath(os.fspath(path))
    with suppress(OSError):
        mode &= stat.S_IMODE(os.stat(target).st_mode)
    # the system applies the umask when it creates a file; tempfile and chmod do not
    temporary = os.path.join(os.path.dirname(target), f".dpscp-{secure_bytes()(8).hex()}")
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            error.filename = target  # the system reports a full disk without the name of the file
        raise


def read_file(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header's body and the arrays of a file.

    Raises
    ------
    ValueError
        For a file of another format or version, or a damaged or altered one.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"file {os.fspath(path)!r} does not exist; check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > os.path.getsize(path):
                raise ValueError("its members are larger than the file")
            return _read_archive(archive)
    except (
        zipfile.BadZipFile,
        SyntaxError,
        tokenize.TokenError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        RecursionError,
    ) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is truncated or not a dpscp model"
        raise ValueError(f"{os.fspath(path)!r} cannot be loaded: {reason}") from None
    except (NotImplementedError, RuntimeError, OverflowError, MemoryError, OSError) as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be loaded: {type(error).__name__}") from None


def _read_archive(archive: zipfile.ZipFile) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read header and arrays; the archive checks the checksum of each."""
    if any(m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size for m in archive.infolist()):
        raise ValueError("it has compressed members, which dpscp never writes")
    if archive.getinfo(_HEADER).file_size > _LARGEST_HEADER:
        raise ValueError("its header is larger than any that dpscp writes")
    head = json.loads(archive.read(_HEADER))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError("it is not a dpscp model")
    version = head.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(
            f"it has format version {version!r}, but this release reads version {FORMAT_VERSION} only; use the release "
            "of dpscp that wrote it"
        )
    if not isinstance(head["body"], dict):
        raise ValueError("its header is not that of a model")
    return head["body"], {name: _array_of(archive.read(f"{name}.npy")) for name in head["arrays"]}


def _array_of(data: bytes) -> NDArray[Any]:
    """Return the array of a member; refuse one whose content differs from its header."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array has a format that dpscp never writes")
    shape, is_transposed, dtype = np.lib.format.read_array_header_1_0(file)
    start, width = file.tell(), dtype.itemsize
    declared = math.prod(shape) * width
    if is_transposed or dtype.kind not in _KINDS or not 0 < width <= len(data) or declared != len(data) - start:
        raise ValueError("an array has another type or size than its header declares")
    if dtype.kind == "U":
        code_points = np.frombuffer(data[start:], np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if code_points.max(initial=0) > sys.maxunicode:
            raise ValueError("an array of texts contains a value that is not a text")
    return np.ndarray(shape, dtype, data, start).copy()


def _array_bytes(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


# The one key of a mapping, and of a bound on row norms, in a file.
_PAIRS, _ROW_NORM = "pairs", "row_norm"


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimator's parameters as JSON values.

    Those that JSON cannot represent are left out.
    """
    found = {name: _plain_parameter(value) for name, value in parameters.items() if name != "estimator"}
    return {name: value for name, value in found.items() if value is not NOT_PLAIN}


def _plain_parameter(value: Any) -> Any:
    if isinstance(value, RowNorm):
        return {_ROW_NORM: value.bound}
    if not isinstance(value, Mapping):
        return plain(value)
    pairs = plain(list(value.items()))  # the keys of a JSON object are always text
    return pairs if pairs is NOT_PLAIN else {_PAIRS: pairs}


def restore_parameters(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that ``plain_parameters`` wrote."""
    return {name: _restore_parameter(value) for name, value in written.items()}


def _restore_parameter(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return RowNorm(value[_ROW_NORM]) if _ROW_NORM in value else dict(value[_PAIRS])
