"""The recipes for other people's training loops: TorchInductor's losses, in less memory."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from depth import deep_except

import remat
from experiments.accuracy.live_kernels import visited
from experiments.recipes.beside import WAYS, largest_difference, measured
from experiments.recipes.recipe_losses import RECIPES, ran
from remat.pytorch import Partitioner
from remat.pytorch.run.plan_log import Log
from tests.test_whole_run import WIDTH, Model

ROOT = Path(__file__).parents[1]
QUICK = ("amp_accumulation",)
BY_COMMAND = ("accelerate_loop", "ddp", "fsdp2")
"""Need a process of their own: two have two ranks, and accelerate allows one precision in a process. The others run in
this process: their commands would each import torch and its stack first."""


def ran_here(name: str) -> dict[str, Any]:
    recipe = import_module(f"experiments.recipes.{name}")
    with patch("remat.pytorch.run.plan_log._recent", Log(64)):  # as in a process of its own
        return {way: measured(recipe.train, how) for way, how in WAYS.items()}


@pytest.mark.parametrize("name", deep_except(QUICK, RECIPES))
def test_a_recipe_has_torch_inductors_losses_in_less_memory(name: str) -> None:
    recipe = RECIPES[name]
    if recipe.missing:
        pytest.skip(recipe.missing)
    found = ran(name) if name in BY_COMMAND else ran_here(name)
    theirs, ours = found["TorchInductor"], found["remat"]
    assert (theirs["graphs"], ours["graphs"] > 0) == (0, True)
    assert len(set(ours["losses"])) == len(ours["losses"]) >= 4, "it trains"
    assert largest_difference(found) <= recipe.tolerance
    assert ours["saved_bytes"] <= ours["default_saved_bytes"] / 2
    assert ours["peak_bytes"] < theirs["peak_bytes"]


def test_every_recipe_is_listed_explained_and_short() -> None:
    written = {path.stem: path.read_text() for path in (ROOT / "experiments/recipes").glob("*.py")}
    files = {name: text for name, text in written.items() if "\n    compare(train" in text}
    assert files.keys() == RECIPES.keys()
    page = (ROOT / "docs/recipes.md").read_text()
    for name, text in files.items():
        assert f"(../experiments/recipes/{name}.py)" in page
        assert len(text.splitlines()) <= 60


def trained_a_step(model: torch.nn.Module) -> None:
    """No code is written for it: others look at what is computed, here only plans count."""
    with visited():
        model(torch.randn(64, WIDTH)).sum().backward()


def test_a_module_compiled_in_place_keeps_the_names_of_its_parameters() -> None:
    model = Model()
    before = [*model.state_dict()]
    model.compile(backend="remat", options={"remat.cost_model": "memory-budget:budget=0.37"})
    trained_a_step(model)
    assert remat.last_report().graphs[-1].cost_model == "MemoryBudget(budget=0.37)", "it is compiled, and by ours"
    assert [*model.state_dict()] == before
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_callback_of_trainer_compiles_and_prints_the_report_once(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = pytest.importorskip("experiments.recipes.trainer_callback", reason="needs transformers")
    model = Model()
    callback = recipe.CompiledWithin(backend="remat", options={"remat.cost_model": "memory-budget:budget=0.41"})
    args, state, control = None, SimpleNamespace(is_world_process_zero=True, global_step=7), None
    callback.on_train_begin(args, state, control, model=model)
    callback.on_step_end(args, state, control)
    assert capsys.readouterr().out == "", "nothing is planned yet"
    trained_a_step(model)
    assert remat.last_report().graphs[-1].cost_model == "MemoryBudget(budget=0.41)"
    callback.on_step_end(args, state, control)
    said = capsys.readouterr().out
    assert said.startswith("step 7, remat:\nsaved ")
    assert "by MemoryBudget(budget=0.41); predicted" in said, "of this training alone"
    callback.on_step_end(args, state, control)
    assert capsys.readouterr().out == ""


def test_of_several_ranks_the_first_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = pytest.importorskip("experiments.recipes.trainer_callback", reason="needs transformers")
    callback = recipe.CompiledWithin(backend="remat")
    model = Model()
    model.compile(backend="remat")
    trained_a_step(model)
    callback.on_step_end(None, SimpleNamespace(is_world_process_zero=False, global_step=7), None)
    assert capsys.readouterr().out == ""


def test_the_callback_of_lightning_compiles_and_logs_the_report_once(caplog: pytest.LogCaptureFixture) -> None:
    recipe = pytest.importorskip("experiments.recipes.lightning_callback", reason="needs lightning")
    logged: list[tuple[dict[str, int], int]] = []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((metrics, step)))
    trainer, module = SimpleNamespace(loggers=[logger], global_step=7), torch.nn.ModuleDict({"network": Model()})
    how = {"backend": "remat", "options": {"remat.cost_model": "memory-budget:budget=0.43"}}
    callback = recipe.CompiledWithin("network", **how)
    callback.setup(trainer, module, "validate")
    trained_a_step(module["network"])
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert logged == [], "no training, so nothing is compiled"
    callback.setup(trainer, module, "fit")
    trained_a_step(module["network"])
    with caplog.at_level("INFO"):
        for batch in range(2):
            callback.on_train_batch_end(trainer, module, None, None, batch)
    assert logged == [({"remat/saved_bytes": remat.last_report().graphs[-1].row["saved_bytes"]}, 7)]
    (said,) = (text for text in caplog.messages if text.startswith("remat:\nsaved "))
    assert "by MemoryBudget(budget=0.43); predicted" in said, "of this training alone"


def test_accelerate_still_refuses_other_peoples_backends() -> None:
    """If this fails, docs/recipes.md may name a simpler way."""
    utils = pytest.importorskip("accelerate.utils", reason="needs accelerate: pip install '.[recipes]'")
    with pytest.raises(ValueError, match="REMAT"):
        utils.TorchDynamoPlugin(backend="remat")


def test_where_only_inductor_may_be_said_a_partitioner_is_set_for_the_process() -> None:
    model, partitioner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), Partitioner.of("multi-read")
    with torch._inductor.config.patch(custom_partitioner_fn=partitioner), visited():
        torch.compile(model)(torch.randn(2, 4)).sum().backward()
    (planned,) = partitioner.log.report().graphs
    assert planned.cost_model == "multi-read"
    assert remat.last_report().graphs[-1] is planned
