"""Predicts how long each value of a graph takes to recompute: the built-in estimators, one per file.

`flops`, `roofline` and `profile` are estimators, registered like those of other packages. Begin reading in `roofline`,
the default. `modelled_time` answers another question: how long all kernels of a step take in the roofline model. They
share `work` (what each operator computes and moves), `device` and `known_devices` (what a device can do) and `timings`
(a cache of measured times). Of `memory` and `kernels`, this package imports only the class `Kernel`.
"""

from remat.predict.time.device import DeviceProfile
from remat.predict.time.flops import Flops
from remat.predict.time.modelled_step import ModelledTime, modelled_time
from remat.predict.time.profile import Profile
from remat.predict.time.roofline import Roofline

__all__ = ["DeviceProfile", "Flops", "ModelledTime", "Profile", "Roofline", "modelled_time"]
