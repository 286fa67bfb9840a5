"""Simulates a training step that keeps values on the host: what its copies cost, and what the device holds meanwhile.

A kernel computes while two copy engines carry, one in each direction. The model:

**Compute.** The kernels are those of the step in which nothing runs twice, one after the other, each as long as the
roofline model says (`remat.predict.time.modelled_time`); what a plan recomputes comes on top, each value for the
estimator's price, right where the backward pass asks for it (`remat.predict.memory.order`). So the time of any plan
without a host is one sum, which a minimum cut can minimize. How kernels fuse anew around a plan is not in it.

**Copies out** begin when the kernel has run that writes the value, in that order, one after the other. The forward pass
is over when all kernels and all copies have run: only then is the device's memory free.

**Copies in** run one after the other, in the order in which the backward pass needs them. The first may begin with the
backward pass, or, with a prefetch distance, so long before the kernel that needs it. A kernel waits for what it needs.

**Memory.** What is offloaded leaves the device when it is copied, and the last kernel of the forward pass has read it.
It comes back when its copy begins, as late as delays nothing.

What a copy adds to the step is *exposed*, the rest of it is *hidden* behind kernels. Begin reading in `clock`, then
`offload_timeline`. Contention for the device's memory, and for the host's, is not in the model.
"""

from remat.predict.offloading.clock import StepClock
from remat.predict.offloading.offload_timeline import Copies, OffloadTimeline, offload_timeline, simulated

__all__ = ["Copies", "OffloadTimeline", "StepClock", "offload_timeline", "simulated"]
