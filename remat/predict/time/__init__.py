"""The built-in estimators of recompute time, one a file, registered as a stranger's would be."""

from remat.predict.time.flops import Flops
from remat.predict.time.profile import Profile
from remat.predict.time.roofline import Roofline

__all__ = ["Flops", "Profile", "Roofline"]
