"""Models in one expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Step = Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
"""What a model computes of itself, and of one argument or two."""


class ModuleOf(nn.Module):
    """Has parts by name, modules, parameters or buffers, and computes a function of itself and of its arguments."""

    def __init__(self, function: Step, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)
