"""The built-in estimators of recompute time, one a file, registered as a stranger's would be."""

from remat.estimators.flops import Flops
from remat.estimators.profile import Profile
from remat.estimators.roofline import Roofline

__all__ = ["Flops", "Profile", "Roofline"]
