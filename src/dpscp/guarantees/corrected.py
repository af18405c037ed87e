"""All records; each record's own influence on its score is removed.

The correction is of first order: sharp, but not proven in finite samples.

Theory: Results D and F
"""

from dpscp.guarantees.base import Guarantee

CORRECTED = Guarantee(
    name="corrected",
    proof="Results D and F: asymptotic; each record's own influence on its score is removed to first order",
    certified=False,
    needs_trajectory=True,
)
