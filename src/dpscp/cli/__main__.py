"""``python -m dpscp.cli``: the same as the ``dpscp`` command."""

import sys

from dpscp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
