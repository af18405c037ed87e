"""The paper's DP-SCP-F: all records, its rank buffer and its union noise buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee
from dpscp.quantile.offsets import Correction, Rank

FINITE = Guarantee(
    name="finite",
    proof="the paper's DP-SCP-F: rank buffer and union noise buffer",
    certified=False,
    correction=Correction.UNION,
    rank=Rank.CEIL,
    rank_buffer=10.0,  # m_n in all experiments of the paper
    releases_size=False,
)
