"""All records, each one's own influence on its score put back to first order: sharp, not proven in finite samples.

Theory: Results D and F
"""

from dpscp.guarantees.base import Guarantee

CORRECTED = Guarantee(
    name="corrected",
    proof="Results D and F: asymptotic, each record's own influence is put back to first order",
    certified=False,
    needs_trajectory=True,
)
