"""DP-SCP-F of the paper: all records, rank buffer and union noise buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee
from dpscp.threshold.offsets import Correction, Rank

FINITE = Guarantee(
    name="finite",
    proof="DP-SCP-F of the paper: rank buffer and union noise buffer",
    certified=False,
    correction=Correction.UNION,
    rank=Rank.CEIL,
    rank_buffer=10.0,  # m_n in all experiments of the paper
    releases_size=False,
)
