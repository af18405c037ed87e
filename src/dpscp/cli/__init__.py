"""Provide the command line, ``dpscp COMMAND``.

Exit codes: 0 success; 1 refused or failed, with one line on standard error; 2 wrong usage; 3 a privacy budget cannot be
met; 4 the alarm of a monitor; 130 interrupted. With ``--json``, standard output is one JSON value.
"""

from dpscp.cli.main import main

__all__ = ["main"]
