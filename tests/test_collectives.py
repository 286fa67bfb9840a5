"""Collectives in a joint graph: whose memory their results are in, and when they may run twice."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import wait_tensor
from torch.utils.checkpoint import checkpoint

import remat
from experiments.models import setups
from remat import Graph


@pytest.fixture(autouse=True)
def one_rank() -> Generator[None]:
    """A group of this process alone: collectives do their work, and copy."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Sharded(nn.Module):
    """Layers of one weight, which is cast and gathered for each; each layer in a checkpointed region or not."""

    def __init__(
        self, checkpointed: bool, gather: Callable[[Tensor], Tensor] = setups.gathered, layers: int = 2
    ) -> None:
        super().__init__()
        self.weight, self.checkpointed, self.gather = nn.Parameter(torch.randn(64, 64) / 8), checkpointed, gather
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.layers):
            x = checkpoint(self.layer, x, use_reentrant=False) if self.checkpointed else self.layer(x)
        return x

    def layer(self, x: Tensor) -> Tensor:
        return (x @ self.gather(self.weight.bfloat16()).float()).tanh()


def by_name(shard: Tensor) -> Tensor:
    """Gathers by an operator whose name stays in the joint graph."""
    gather = torch.ops._c10d_functional_autograd.all_gather_into_tensor
    return wait_tensor(gather(shard, 1, dist.group.WORLD.group_name))


def captured(checkpointed: bool, gather: Callable[[Tensor], Tensor] = setups.gathered, layers: int = 2) -> Graph:
    torch.manual_seed(0)
    return remat.capture(Sharded(checkpointed, gather, layers), torch.randn(8, 64))


def positions(graph: Graph, word: str) -> list[int]:
    found = [i for i, op in enumerate(graph.ops) if word in op]
    assert found
    return found


def test_what_is_waited_for_is_in_the_memory_of_the_collective() -> None:
    graph = captured(checkpointed=False)
    for wait in positions(graph, "wait_tensor"):
        (collective,) = graph.operands[wait]
        assert graph.base[wait] == graph.base[collective] == collective
        assert graph.view[wait]


@pytest.mark.parametrize("gather", [setups.gathered, by_name])
def test_a_collective_is_banned_from_running_twice_and_carries_no_mark_of_the_users(
    gather: Callable[[Tensor], Tensor],
) -> None:
    graph = captured(checkpointed=False, gather=gather)
    for word in ("all_gather", "wait_tensor", "reduce_scatter"):
        assert graph.cannot_recompute.mask[positions(graph, word)].all()
    assert not graph.must_save.any()
    assert not set(remat.choose(graph).plan.recomputed) & {graph.names[i] for i in positions(graph, "c10d")}


def test_a_checkpointed_region_may_gather_again() -> None:
    """One region: what two of them share torch merges, and keeps. On 2.15 that is the gather."""
    graph = captured(checkpointed=True, layers=1)
    gathers = positions(graph, "all_gather")
    assert not graph.cannot_recompute.mask[gathers].any()
    assert graph.cannot_recompute.mask[positions(graph, "reduce_scatter")].all()


def gathered_again(graph: Graph) -> bool:
    """Whether the plan keeps the weight alone, not what was gathered."""
    plan = remat.choose(graph).plan
    gathers = {graph.names[i] for i in positions(graph, "all_gather")}
    return gathers <= set(plan.recomputed)


def test_copies_of_parameters_that_a_captured_model_gathers_are_gathered_again() -> None:
    graph = captured(checkpointed=False)
    assert not gathered_again(graph)
    assert gathered_again(remat.recompute_parameter_copies(graph))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_gradients_are_those_of_the_model_whether_or_not_it_gathers_again(checkpointed: bool, again: bool) -> None:
    torch.manual_seed(0)
    model, x = Sharded(checkpointed), torch.randn(8, 64)

    def gradient(step: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.autograd.grad(step(x).sum(), model.weight)[0]

    step = remat.compile(model, recompute_parameter_copies=again, codegen=False)
    # One rounding of bfloat16: kernels differ from CPU to CPU.
    torch.testing.assert_close(gradient(step), gradient(model), rtol=2**-8, atol=1e-3)
