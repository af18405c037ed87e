"""Check outputs before work begins."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dpscp.cli.errors import CommandError


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse an output that cannot be written, before any budget is spent."""
    folder = path.absolute().parent
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder; use the name of a file")
    if any(file.exists() and path.exists() and path.samefile(file) for file in inputs):
        raise CommandError(f"{str(path)!r} is an input file; use another name for the output")
    if not folder.is_dir():
        raise CommandError(f"the folder {str(folder)!r} does not exist; create it first")
    try:
        handle, name = tempfile.mkstemp(prefix=".dpscp-", dir=folder)
        os.close(handle)
        os.unlink(name)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} is not writable; choose another folder") from None


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace existing files without ``force``, so that no paid model is lost."""
    for path in () if force else paths:
        if path.exists():
            raise CommandError(f"{str(path)!r} already exists; use another name, or --force to replace it")
