"""The error of a command, and errors of the operating system in plain words."""

import errno


class CommandError(Exception):
    """Report why a command refuses, and the remedy; never with content of the records."""


def describe_os_error(error: OSError) -> str:
    """Describe an error of the operating system with the name of its file, and a remedy for a full disk."""
    file = "" if error.filename is None else repr(str(error.filename))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {file or 'a file'} cannot be written. Free space, then run the command again"
    return f"{file}: {error.strerror}" if file and error.strerror else str(error)
