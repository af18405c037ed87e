"""The paper's DP-SCP-A: all records, no buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee
from dpscp.quantile.offsets import Correction, Rank

ASYMPTOTIC = Guarantee(
    name="asymptotic",
    proof="the paper's DP-SCP-A: no buffer",
    certified=False,
    correction=Correction.NONE,
    rank=Rank.CEIL,
    releases_size=False,
)
