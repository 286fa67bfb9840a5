"""Decisions about modules, run: the gradients stay, and autograd keeps what was decided and nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import remat
from experiments.models.zoo import gpt2
from remat import CaptureError, InvalidOption, InvalidPlan, UnsupportedProblem
from remat.pytorch.eager import region_contexts
from remat.pytorch.eager.regions import Regions
from tests.modules import ModuleOf, Step


class Operators(TorchDispatchMode):
    """Notes what runs, and which memory it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(str(func))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def live_bytes(self, outside: set[int]) -> int:
        return sum(size for at, (ref, size) in self._made.items() if not ref.expired() and at not in outside)


def step(run: Callable[[], Any], model: nn.Module) -> tuple[int, float, list[Tensor], list[str]]:
    """One step: what is alive between the passes, the loss, the gradients, and what the backward pass ran."""
    torch.manual_seed(7)
    outside = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    with Operators() as forward:
        loss = run()
    kept = forward.live_bytes(outside)
    model.zero_grad()
    with Operators() as backward:
        loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return kept, loss.item(), gradients, backward.names


def same(first: tuple[int, float, list[Tensor], list[str]], second: tuple[int, float, list[Tensor], list[str]]) -> None:
    assert first[1] == second[1]
    assert len(first[2]) == len(second[2])
    for ours, theirs in zip(first[2], second[2], strict=True):
        torch.testing.assert_close(ours, theirs)


def gpt(dropout: float = 0.0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return gpt2(layers=3, width=64, heads=4, vocabulary=64, context=32, batch=2, fused=True, dropout=dropout)


def llama() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
    )
    return LlamaForCausalLM(config), torch.randint(128, (2, 32))


@cache
def gpt_graph() -> remat.Graph:
    model, args = gpt()
    return remat.capture(model, *args)


@cache
def llama_graph() -> remat.Graph:
    model, tokens = llama()
    return remat.capture(model, tokens, labels=tokens)


@cache
def chosen_half() -> Regions:
    return remat.choose_regions(gpt_graph(), budget=0.5)


PRODUCTS = ["blocks.*.qkv", "blocks.*.project", "blocks.*.up", "blocks.*.down"]


def test_autograd_keeps_to_the_byte_what_decisions_about_products_say() -> None:
    (model, args), graph = gpt(), gpt_graph()
    plain = step(lambda: model(*args), model)
    kept: list[int] = []
    promised: list[int] = []
    for budget in (0.0, 0.2, 0.4, 1.0):
        chosen = remat.choose_regions(graph, budget=budget, regions=PRODUCTS)
        assert chosen.choice is not None
        with chosen.apply(model):
            ours = step(lambda: model(*args), model)
        same(ours, plain)
        kept.append(ours[0])
        promised.append(chosen.choice.saved_bytes)
    # What is outside of the layers, eager mode keeps in another way than the graph.
    assert [each - kept[0] for each in kept] == [each - promised[0] for each in promised]
    assert kept[0] < kept[1] < kept[2] < kept[3] < plain[0]


def test_a_saved_product_does_not_run_twice() -> None:
    model, args = gpt()
    names = [f"blocks.{i}.{m}" for i in range(3) for m in ("qkv", "project", "up")]
    layers = ("blocks.0", "blocks.1", "blocks.2")
    products = {}
    for saved in ((), ("blocks.1.qkv",), tuple(names)):
        with Regions(layers, saved, tuple(name for name in names if name not in saved)).apply(model):
            products[len(saved)] = step(lambda: model(*args), model)[3].count("aten.addmm.default")
    assert products == {0: 9, 1: 8, 9: 0}  # `down` is the last one of a layer: autograd reads nothing after it


def test_attention_is_kept_with_what_its_backward_pass_reads() -> None:
    model, tokens = llama()
    plain = step(lambda: model(tokens, labels=tokens).loss, model)
    layers = tuple(f"model.layers.{i}" for i in range(4))
    attention = tuple(f"{layer}.self_attn" for layer in layers)
    inside = tuple(f"{each}.{m}_proj" for each in attention for m in "qkvo")
    all_again, saved = (Regions(layers, *split) for split in (((), attention), (attention, inside)))
    with all_again.apply(model):
        least = step(lambda: model(tokens, labels=tokens).loss, model)
    with saved.apply(model):
        ours = step(lambda: model(tokens, labels=tokens).loss, model)
    same(least, plain)
    same(ours, plain)
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert (least[3].count(name), ours[3].count(name)) == (4, 0)
    # Queries and keys after their rotation, and the result with its sums; `v_proj` runs again for the values.
    tensor = 2 * 32 * 64 * 4
    sums = 2 * 4 * 32 * 4
    assert ours[0] - least[0] == 4 * (3 * tensor + sums)


def test_only_expensive_operators_of_a_saved_region_are_kept_on_demand() -> None:
    (model, tokens), graph = llama(), llama_graph()
    plain, kept, promised = step(lambda: model(tokens, labels=tokens).loss, model), [], []
    for budget in (0.0, 0.25, 1.0):
        chosen = remat.choose_regions(graph, budget=budget, regions="model.layers.*.self_attn*", keep="expensive")
        assert chosen.choice is not None
        with chosen.apply(model):
            ours = step(lambda: model(tokens, labels=tokens).loss, model)
        same(ours, plain)
        kept.append(ours[0])
        promised.append(chosen.choice.saved_bytes)
    assert [each - kept[0] for each in kept] == [each - promised[0] for each in promised]
    assert kept[0] < kept[1] < kept[2]


def test_dropout_in_saved_and_in_other_regions_draws_the_same_numbers() -> None:
    model, args = gpt(dropout=0.3)
    model.train()
    plain = step(lambda: model(*args), model)
    layers = tuple(f"blocks.{i}" for i in range(3))
    for saved in ((), layers[1:], ("blocks.0.up", "blocks.1.qkv")):
        again = tuple(layer for layer in (*layers, "blocks.0.up", "blocks.1.qkv") if layer not in saved)
        inside = Regions(layers, saved, again)
        with inside.apply(model):
            same(step(lambda: model(*args), model), plain)


def test_whole_layers_get_plain_checkpointing_or_none() -> None:
    (model, tokens), graph = llama(), llama_graph()
    plain = step(lambda: model(tokens, labels=tokens).loss, model)
    chosen = remat.choose_regions(graph, budget=1.0, regions="layers")
    assert 0 < len(chosen.checkpointed_layers) < 4
    assert {*chosen.checkpointed_layers} == {*chosen.recompute_regions}
    with chosen.apply(model):
        ours = step(lambda: model(tokens, labels=tokens).loss, model)
    same(ours, plain)
    for layer in chosen.checkpointed_layers:  # what a user would type
        block = model.get_submodule(layer)
        forward = block.forward
        block.forward = lambda *a, forward=forward, **k: checkpoint(forward, *a, use_reentrant=False, **k)
    assert step(lambda: model(tokens, labels=tokens).loss, model)[0] == ours[0]


def test_transformers_runs_the_policy_itself() -> None:
    model, tokens = llama()
    plain = step(lambda: model(tokens, labels=tokens).loss, model)
    chosen = remat.choose_regions(llama_graph(), budget=0.6)
    assert chosen.save_regions
    with chosen.apply(model):
        applied = step(lambda: model(tokens, labels=tokens).loss, model)
    with chosen.policy(model) as policy:
        options = {"use_reentrant": False, "context_fn": policy.contexts}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        model.train()
        ours = step(lambda: model(tokens, labels=tokens).loss, model)
    same(applied, plain)
    same(ours, plain)
    assert ours[0] == applied[0] < plain[0]


def test_a_graph_is_run_backward_twice() -> None:
    model, args = gpt()
    chosen = chosen_half()
    with chosen.apply(model):
        loss = model(*args)
        loss.backward(retain_graph=True)
        once = [parameter.grad.clone() for parameter in model.parameters()]
        loss.backward()
    for parameter, first in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * first)


def test_under_autocast_a_layer_may_run_twice() -> None:
    """Autocast keeps its copies of weights from one call to the next, and none for the backward pass."""
    model, args = gpt()
    layers = ("blocks.0", "blocks.1", "blocks.2")
    regions = Regions(layers, ("blocks.1.qkv",), tuple(f"{layer}.up" for layer in layers))
    leaves = list(model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.autograd.grad(model(*args), leaves)
        with regions.apply(model):
            steps = [model(*args) for _ in range(2)]
            assert torch.is_autocast_cache_enabled()
    for loss in steps:
        for ours, theirs in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_model_is_as_before_afterwards() -> None:
    model, _ = gpt()
    chosen = chosen_half()
    before = model.blocks[0].forward
    with chosen.apply(model):
        assert model.blocks[0].forward is not before
    assert model.blocks[0].forward == before
    assert all("forward" not in module.__dict__ for module in model.modules())
    first, second = chosen.apply(model), chosen.apply(model)
    with pytest.raises(InvalidOption, match="undo these first"):
        first.remove()
    second.remove()
    first.remove()
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_region_runs_in_its_own_thread() -> None:
    model, _ = gpt()
    chosen = chosen_half()
    applied = chosen.apply(model)
    saved, runs, barrier = chosen.save_regions[0], list[bool](), threading.Barrier(2)

    def inside() -> None:
        barrier.wait()  # the other thread is in no region
        barrier.wait()

    def outside() -> None:
        barrier.wait()
        runs.append(applied.is_saved(torch.ops.aten.mm.default))
        barrier.wait()

    with ThreadPoolExecutor(2) as pool:
        for task in [pool.submit(applied.enter(saved, inside)), pool.submit(outside)]:
            task.result()
    assert runs == [False]


def test_decisions_travel_as_json_that_is_yaml(tmp_path: Path) -> None:
    model, args = gpt()
    chosen = chosen_half()
    chosen.save(tmp_path / "regions.yaml")
    document = yaml.safe_load((tmp_path / "regions.yaml").read_text())
    assert document["save_regions"] == list(chosen.save_regions)
    again = Regions.load(tmp_path / "regions.yaml")
    assert again == chosen
    assert str(again).splitlines() == [f"  {region}: save" for region in chosen.save_regions]
    with again.apply(model):
        ours = step(lambda: model(*args), model)
    with chosen.apply(model):
        assert step(lambda: model(*args), model)[0] == ours[0]
    (tmp_path / "regions.yaml").write_text('{"format": "remat.regions", "keep": "all", "layers": []}')
    with pytest.raises(InvalidPlan, match="save_regions"):
        Regions.load(tmp_path / "regions.yaml")


def test_what_cannot_be_run_is_refused() -> None:
    overwriting = pair(lambda net, x: net.second(net.first(x).add_(1)).sin())
    model, x = nn.ModuleList([overwriting]), torch.ones(2, 8)
    with (
        Regions(("0",), ("0.first",), ("0.second",)).apply(model),
        pytest.raises(CaptureError, match="overwrites what a saved region has computed"),
    ):
        model[0](x)
    with pytest.raises(InvalidOption, match=r"no module '0\.third'"):
        Regions(("0",), ("0.third",), ()).apply(model)
    with pytest.raises(InvalidOption, match="takes no arguments"):
        remat.choose_regions(gpt_graph(), x, budget=0.5)


def pair(function: Step, **more: Any) -> nn.Module:
    """A layer of two parts, and more if asked for."""
    return ModuleOf(function, **({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)} | more))


def counting(reads: bool) -> nn.Module:
    """A layer that counts its calls, and may read the count."""

    def forward(net: Any, x: Tensor) -> Tensor:
        net.count += 1
        return net.second(net.first(x * net.count if reads else x)).sin()

    return pair(forward, count=torch.zeros(()))


def drawing() -> nn.Module:
    generator = torch.Generator()
    return pair(lambda net, x: net.second(net.first(x * torch.rand(x.shape, generator=generator))).sin())


def scaling() -> nn.Module:
    """A layer that writes what a part of it reads, which may be saved."""

    def forward(net: Any, x: Tensor) -> Tensor:
        net.first.scale += 1
        return net.second(net.first(x.sin())).sin()

    return pair(forward, first=ModuleOf(lambda net, x: x * net.scale, scale=torch.ones(())))


def normalizing() -> nn.Module:
    """A layer that reads the running statistics that it updates."""
    return pair(lambda net, x: net.second(net.first(x)) * net.second.running_var, second=nn.BatchNorm1d(8))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (counting(reads=True), r"aten\.add_.* overwrites a buffer .* reads"),
        (scaling(), r"aten\.add_.* overwrites a buffer .* that the backward pass reads"),
        (normalizing(), r"aten\.native_batch_norm.* overwrites a buffer .* that aten\.mul.* reads"),
        (drawing(), r"draws from a torch\.Generator"),
    ],
)
def test_a_layer_that_would_compute_something_else_when_it_runs_again_is_refused(layer: nn.Module, why: str) -> None:
    model, x = nn.ModuleList([layer]), torch.randn(4, 8, requires_grad=True)
    with Regions(("0",), ("0.first",), ("0.second",)).apply(model), pytest.raises(CaptureError, match=why):
        model[0](x)


def test_a_cache_of_keys_and_values_is_not_filled_twice() -> None:
    model, ids = llama()
    chosen = remat.choose_regions(llama_graph(), budget=0.5)
    with chosen.apply(model):
        model(ids, labels=ids).loss.backward()
        with pytest.raises(CaptureError, match="use_cache=False"):
            model(ids, labels=ids, use_cache=True)
        with torch.no_grad():  # nothing runs again
            assert model(ids, use_cache=True).past_key_values.get_seq_length() == ids.shape[1]


def test_a_layer_may_update_a_buffer_that_it_does_not_read() -> None:
    model = nn.ModuleList([counting(reads=False), nn.BatchNorm1d(8)])
    x = torch.randn(4, 8)
    with Regions(("0", "1"), ("0.first",), ("0.second", "1")).apply(model):
        model[1](model[0](x)).square().sum().backward()
    assert model[0].count == 2


def test_a_model_that_does_something_else_the_second_time_is_noticed() -> None:
    class Fickle(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x.sin() if self.calls % 2 else x.cos()).sin()

    model = nn.ModuleList([nn.Sequential(Fickle(8, 8), nn.Tanh())])
    with (
        Regions(("0",), ("0.0",), ()).apply(model),
        pytest.raises(InvalidPlan, match=r"ran aten\.sin"),
    ):
        model[0](torch.ones(2, 8)).sum().backward()


def with_torch_remat(saved: tuple[str, ...], dropout: float = 0.0) -> tuple[nn.Module, tuple[Tensor, ...], Regions]:
    model, args = gpt(dropout)
    names = tuple(f"blocks.{i}.{m}" for i in range(3) for m in ("qkv", "project", "up", "down"))
    return model, args, Regions(tuple(f"blocks.{i}" for i in range(3)), saved, tuple({*names} - {*saved}))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_regions_of_torch_remat_keep_what_is_saved_and_nothing_else(dropout: float) -> None:
    saved = ("blocks.0.up", "blocks.1.up", "blocks.1.qkv")
    model, args, regions = with_torch_remat(saved, dropout)
    plain = step(lambda: model(*args), model)
    with Regions(regions.layers, (), ()).apply_torch_remat(model):
        least = step(lambda: model(*args), model)
    with regions.apply_torch_remat(model):
        ours = step(lambda: model(*args), model)
    same(least, plain)
    same(ours, plain)
    assert ours[0] - least[0] == 2 * 32 * 4 * (2 * 256 + 192)
    assert least[3].count("aten.addmm.default") - ours[3].count("aten.addmm.default") == len(saved)
    assert step(lambda: model(*args), model)[0] == plain[0]


def test_what_torch_remat_cannot_do_is_refused() -> None:
    model, _ = gpt()
    for regions in (
        Regions(("blocks.0",), ("blocks.0",), ("blocks.0.up",)),
        Regions(("blocks.0",), ("blocks.0.up",), (), "expensive"),
    ):
        with pytest.raises(UnsupportedProblem, match="torch_remat saves regions as a whole"):
            regions.apply_torch_remat(model)


def writing_after_the_layer() -> nn.Module:
    """A layer returns what its region computes, and a function of it."""

    def forward(net: Any, x: Tensor) -> Tensor:
        for layer in net.layers:
            y, gate = layer(x)
            x = y.relu_() + gate
        return x.sum()

    regions = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(2))
    layers = (
        ModuleOf(lambda net, x: ((y := net.attention(x)), torch.sigmoid(y)), attention=region) for region in regions
    )
    return ModuleOf(forward, layers=nn.ModuleList(layers))


def writing_in_the_layer() -> nn.Module:
    """One region overwrites what another one computed, after a recomputed operator has read it."""
    downs = (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(2))
    gates = (
        ModuleOf(lambda net, x: torch.sigmoid(y := net.up(x)) * net.down(y), up=nn.Linear(8, 8), down=d) for d in downs
    )
    return ModuleOf(lambda net, x: net.layers[1](net.layers[0](x)).sum(), layers=nn.ModuleList(gates))


@pytest.mark.parametrize(
    ("make", "regions"),
    [
        (writing_after_the_layer, ["layers.*.attention"]),
        (writing_in_the_layer, ["layers.*.up", "layers.*.down"]),
    ],
)
def test_a_kept_result_that_is_overwritten_is_refused(make: Callable[[], nn.Module], regions: list[str]) -> None:
    """All gradients were wrong, without an error."""
    model, x = make(), torch.randn(4, 8)
    chosen = remat.choose_regions(model, x, budget=1.0, regions=regions)
    with chosen.apply(model), pytest.raises(CaptureError, match="without an operator in place"):
        model(x).backward()


def sparse_block() -> nn.Module:
    def mixed(net: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            mask = net.linear(x).relu().to_sparse()
        return torch.sparse.mm(mask, x)

    parts: dict[str, nn.Module] = {"mixing": ModuleOf(mixed, linear=nn.Linear(8, 8)), "out": nn.Linear(8, 8)}
    return ModuleOf(lambda net, x: torch.tanh(net.out(net.mixing(torch.sin(x)))), **parts)


def test_sparse_results_of_a_saved_region_are_kept() -> None:
    """They have no storage, so they were taken for views, and made again of what was not kept."""
    model, x = nn.ModuleDict({"blocks": nn.Sequential(sparse_block(), sparse_block())}), torch.randn(8, 8)
    layers = ("blocks.0", "blocks.1")
    regions = Regions(layers, tuple(f"{layer}.mixing" for layer in layers), tuple(f"{layer}.out" for layer in layers))

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model["blocks"](x).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    with regions.apply(model):
        again = gradients()
    assert len(plain) == len(again) == 4
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


def test_a_missing_module_leaves_the_model_as_it_is() -> None:
    model = writing_in_the_layer()
    regions = Regions(("layers.0", "layers.7"), ("layers.0.up",), ())
    with pytest.raises(InvalidOption, match=r"no module 'layers\.7'"):
        regions.apply(model)
    assert not any("forward" in module.__dict__ for module in model.modules())


def residual() -> nn.Module:
    step: Step = lambda net, x: x + net.down(torch.sin(net.up(x)).exp().cos().tanh())  # noqa: E731
    return ModuleOf(step, up=nn.Linear(64, 64), down=nn.Linear(64, 64))


def test_what_nobody_reads_is_not_kept_whatever_was_freed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of freed storages were used again, and so taken for what somebody had read."""
    model, held = nn.Sequential(*[residual() for _ in range(8)]), list[int]()
    end = region_contexts._Forward.__exit__

    def noted(self: Any, *error: Any) -> None:
        end(self, *error)
        leaves = [leaf for call in self._calls for leaf in call.leaves or ()]
        held.append(sum(leaf.tensor.nbytes for leaf in leaves if isinstance(leaf, region_contexts._SavedResult)))

    monkeypatch.setattr(region_contexts._Forward, "__exit__", noted)
    names = [str(i) for i in range(8)]
    regions = Regions(tuple(names), tuple(f"{name}.down" for name in names), tuple(f"{name}.up" for name in names))
    with regions.apply(model):
        model(torch.randn(256, 64)).sum().backward()
    assert held == [0] * 8
