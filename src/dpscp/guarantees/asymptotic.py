"""DP-SCP-A of the paper: all records, no buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee
from dpscp.threshold.offsets import Correction, Rank

ASYMPTOTIC = Guarantee(
    name="asymptotic",
    proof="DP-SCP-A of the paper: no buffer, so coverage is only asymptotic",
    certified=False,
    correction=Correction.NONE,
    rank=Rank.CEIL,
    releases_size=False,
)
