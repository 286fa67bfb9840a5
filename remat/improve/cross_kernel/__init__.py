"""Recomputes values across the kernels of one pass (paper, section 3.7).

Where a kernel reads what another one wrote, "save or recompute?" comes up again, and a minimum cut answers it. A `Pass`
is a forward or backward graph in fusion groups (`remat.improve.cross_kernel.fusion_groups`); `pair` states the
question for two groups that touch, as a joint graph for any cost model and solver
(`remat.improve.cross_kernel.pairs`); and `recompute_across` asks it for all pairs of a pass, to a fixed point
(`remat.improve.cross_kernel.pass_search`). `remat.pytorch.inductor.duplicate` makes the answers real in
TorchInductor.
"""

from remat.improve.cross_kernel.fusion_groups import Group, Pass, PassTraffic
from remat.improve.cross_kernel.pairs import pair
from remat.improve.cross_kernel.pass_search import Recomputed, recompute_across

__all__ = ["Group", "Pass", "PassTraffic", "Recomputed", "pair", "recompute_across"]
