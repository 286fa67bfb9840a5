"""Simulates a training step that offloads values to the host: the cost of the copies, and the device's memory.

Kernels run on the device while two copy engines run, one in each direction. The model:

**Compute.** The kernels are those of a step without recomputation. They run one after the other, each for the time of
the roofline model (`remat.predict.time.modelled_time`). Each recomputed value adds its cost by the estimator, where the
backward pass needs it (`remat.predict.memory.order`). So the time of a plan without offloading is a sum, which a
minimum cut can minimize. The model ignores that kernels fuse differently under each plan.

**Copies to the host** begin when the kernel that writes the value has run, one copy after the other. The forward pass
ends when all its kernels and copies have run: only then is the device's memory free.

**Copies back** run one after the other, in the order in which the backward pass needs them. The first one begins with
the backward pass or, with a prefetch distance, that long before the kernel that needs it. A kernel waits for its
operands.

**Memory.** An offloaded value leaves the device when it is copied and its last reader in the forward pass has run. It
comes back when its copy begins, which is as late as possible without a delay.

The *exposed* part of a copy lengthens the step; the *hidden* part runs while kernels run. Begin reading in `clock`,
then `offload_timeline`. The model ignores contention for the memory of the device and the host.
"""

from remat.predict.offloading.clock import StepClock
from remat.predict.offloading.offload_timeline import Copies, OffloadTimeline, offload_timeline, simulated

__all__ = ["Copies", "OffloadTimeline", "StepClock", "offload_timeline", "simulated"]
