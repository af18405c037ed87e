"""The command line: ``dpscp demo | schema | fit | predict | report | plan | audit | budget | reproduce``.

Exit codes: 0 done; 1 refused or failed, with one line on standard error that says what to do; 2 wrong usage; 3 a
privacy budget cannot be met; 130 interrupted. With ``--json`` standard output holds one JSON value and nothing else.
"""

from dpscp.cli.main import main

__all__ = ["main"]
