"""Finds an oracle by its name: the prediction, or one of two that need torch, which is imported only then."""

from __future__ import annotations

from importlib.util import find_spec

from remat.errors import InvalidOption, NotInstalled
from remat.improve.refine.oracles import Model, Oracle
from remat.words import near

_NAMES = (Model.name, "inductor", "device")


def find_oracle(oracle: str | Oracle, device: str | None = None) -> Oracle:
    """Returns the oracle of a name; an instance is returned as it is.

    Args:
        oracle: a name or an instance.
        device: the device whose kernels Inductor is to schedule; None takes that of the graph.

    Raises:
        InvalidOption: no oracle has this name.
        NotInstalled: it needs torch.
    """
    if isinstance(oracle, Oracle):
        return oracle
    if oracle == Model.name:
        return Model()
    if oracle not in _NAMES:
        hint = near(str(oracle), _NAMES)
        raise InvalidOption(f"oracle must be one of {', '.join(_NAMES)}, got {oracle!r}{hint}")
    if find_spec("torch") is None:
        raise NotInstalled(f"the oracle {oracle!r} needs torch: pip install 'remat[torch]' (or take 'model')")
    from remat.pytorch.measure.torch_oracles import Device, Inductor

    return Inductor(device) if oracle == Inductor.name else Device()
