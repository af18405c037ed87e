"""The paper's DP-SCP-F: all records, its rank buffer and its union noise buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee

FINITE = Guarantee(
    name="finite",
    proof="the paper's DP-SCP-F: rank buffer and union noise buffer",
    certified=False,
    correction="union",
    rank="ceil",
    rank_buffer=10.0,  # m_n in all experiments of the paper
    releases_size=False,
)
