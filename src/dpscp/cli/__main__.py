"""Run the ``dpscp`` command as ``python -m dpscp.cli``."""

import dpscp.__main__  # noqa: F401
