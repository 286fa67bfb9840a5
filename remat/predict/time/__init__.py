"""Predicts how long each value of a graph takes to compute again: the built-in estimators, one a file.

`flops`, `roofline` and `profile` are estimators and are registered as a stranger's would be; import them from here,
or by name through the registry. `modelled_time` asks another question: how long all kernels of a step take, as far as
a roofline says. What they share is `work` (what each operator computes and moves), `device` and
`known_devices` (what a device can do) and `timings` (a cache of measured times). Nothing here imports `memory` or
`kernels`, its neighbours. Begin reading in `roofline`, the default.
"""

from remat.predict.time.device import DeviceProfile
from remat.predict.time.flops import Flops
from remat.predict.time.modelled_step import ModelledTime, modelled_time
from remat.predict.time.profile import Profile
from remat.predict.time.roofline import Roofline

__all__ = ["DeviceProfile", "Flops", "ModelledTime", "Profile", "Roofline", "modelled_time"]
