"""Runs two training steps of a small case, and collects all that they leave behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from experiments.models.model_case import ModelCase


def train(case: ModelCase, wrap: Callable[[nn.Module], Any], device: str = "cpu") -> dict[str, Any]:
    """Takes two steps of gradient descent from a fixed seed, and collects all that they leave behind.

    Args:
        case: what to train.
        wrap: from the model to what is called in its place.
        device: where. Models that make tensors without naming a device make them there, too.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = case.build()
        batches = [case.inputs() for _ in range(2)]
        step = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        seen: dict[str, Any] = {"outputs": []}
        for i, batch in enumerate(batches):
            optimizer.zero_grad()
            output = step(*batch)
            tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            loss = sum((t.float().square().mean() for t in tensors if t.requires_grad), torch.zeros(()))
            loss.backward()
            seen["outputs"].append([t.detach().clone() for t in tensors])
            for name, parameter in model.named_parameters():
                seen[f"gradient of {name} in step {i}"] = copy.deepcopy(parameter.grad)
            optimizer.step()
    seen |= {name: value.clone() for name, value in model.state_dict().items()}
    return seen | {"inputs": batches, "random state": random_state(device)}


def random_state(device: str) -> Tensor:
    """Returns the state of the generator that models on a device draw from."""
    return torch.cuda.get_rng_state() if torch.device(device).type == "cuda" else torch.get_rng_state()


def draws_random_numbers(case: ModelCase, device: str = "cpu") -> bool:
    """Tells whether the model's forward pass takes from the random number generator."""
    torch.manual_seed(0)
    with torch.device(device):
        model, batch = case.build(), case.inputs()
        before = random_state(device)
        model(*batch)
    return not torch.equal(before, random_state(device))
