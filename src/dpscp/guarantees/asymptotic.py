"""The paper's DP-SCP-A: all records, no buffer.

Paper: Algorithm 1 [alg: dp-scp]
"""

from dpscp.guarantees.base import Guarantee

ASYMPTOTIC = Guarantee(
    name="asymptotic",
    proof="the paper's DP-SCP-A: no buffer",
    certified=False,
    correction="none",
    rank="ceil",
    releases_size=False,
)
