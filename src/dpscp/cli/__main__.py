"""Run the ``dpscp`` command as ``python -m dpscp.cli``."""

import sys

from dpscp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
