"""Print a report to PDF with a browser that is installed."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from dpscp.cli.errors import CommandError

# The variable of the environment that names a browser, and the commands that are tried otherwise.
BROWSER_VARIABLE = "DPSCP_BROWSER"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_SECONDS = 120


def find_browser() -> str:
    """Return the command of an installed browser that prints pages; refuse if there is none."""
    chosen = os.environ.get(BROWSER_VARIABLE)
    for name in [chosen] if chosen else BROWSERS:
        if found := shutil.which(name):
            return found
    raise CommandError(
        f"--pdf needs an installed browser, and none of {', '.join([chosen] if chosen else BROWSERS)} was found. "
        f"Install Chromium or Google Chrome, set {BROWSER_VARIABLE} to its path, or open the HTML report in any "
        "browser and print it to PDF"
    )


def print_page(browser: str, page: Path, output: Path) -> None:
    """Print an HTML file to PDF; the file appears when it is complete."""
    with tempfile.TemporaryDirectory(prefix=".dpscp-", dir=output.absolute().parent) as folder:
        printed = Path(folder) / "page.pdf"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            *(["--no-sandbox"] if _is_root() else []),
            page.absolute().as_uri(),
        ]
        with suppress(OSError, subprocess.TimeoutExpired):  # the missing file says the same
            subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)
        if not printed.is_file() or printed.stat().st_size == 0:
            raise CommandError(
                f"the browser {browser!r} did not print the report; open {str(page)!r} in a browser and print it to PDF"
            )
        os.replace(printed, output)


def _is_root() -> bool:
    """Whether the user is root, for whom Chromium starts without its sandbox only."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
