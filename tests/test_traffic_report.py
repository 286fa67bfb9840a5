"""The experiment about traffic: what it counts, and that it owns up to a goal that is missed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import remat
from costmodels import MultiRead
from experiments.traffic_study.compare_strategies import StrategyRow, StrategySubject
from experiments.traffic_study.traffic_picture import picture
from experiments.traffic_study.traffic_report import DEFAULT, REFINED, TRANSFORMERS, markdown, summary
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.inductor.scheduled import inductor_kernels
from remat.pytorch.measure.torch_budgets import torchs_plans

GPT, MLP = TRANSFORMERS[0], "an MLP"


def finished(**rows: dict[str, tuple[int, int, int, bool]]) -> dict[str, Any]:
    """Model -> strategy -> (bytes, kernels, saved bytes, legal), as traffic.json has it."""
    return {
        model: {
            "provenance": {"command": "python -m traffic", "commit": "c", "torch": "t", "machine": "m", "date": "d"},
            "failed": {},
            "rows": [
                asdict(StrategyRow(model, name, moved, 0, kernels, saved, None, None, legal))
                for name, (moved, kernels, saved, legal) in strategies.items()
            ],
        }
        for model, strategies in rows.items()
    }


def test_a_goal_that_is_missed_is_said_to_be_missed() -> None:
    met = {DEFAULT: (1000, 5, 100, True), REFINED: (950, 5, 100, True)}
    missed = {DEFAULT: (1000, 5, 100, True), REFINED: (1001, 6, 101, True)}
    columns = (
        "transformers that miss the goal",
        "refined moves more",
        "refined saves more",
        "refined has more kernels",
    )
    good, bad = summary(finished(**{GPT: met, MLP: met})), summary(finished(**{GPT: missed, MLP: missed}))
    assert [good[column] for column in columns] == [[], [], [], []]
    assert [bad[column] for column in columns] == [[GPT], [GPT, MLP], [GPT, MLP], [GPT, MLP]]
    barely = summary(finished(**{GPT: met | {REFINED: (951, 5, 100, True)}}))
    assert barely["transformers that miss the goal"] == [GPT]


def test_bold_is_the_least_of_the_legal_plans_that_save_no_more_than_pytorch(tmp_path: Path) -> None:
    rows = {
        DEFAULT: (3_000_000, 5, 100, True),
        "PyTorch, aggressive": (1_000_000, 5, 50, False),
        "classic cut": (2_000_000, 5, 100, True),
        "multi-read cut": (1_500_000, 5, 101, True),
    }
    models = finished(**{MLP: rows})
    assert [line.split(" | ")[1] for line in markdown(models).splitlines() if "**" in line] == ["classic cut"]
    picture(models, tmp_path / "traffic.svg")
    drawn = (tmp_path / "traffic.svg").read_text()
    assert drawn.startswith("<?xml")
    texts = [MLP, "classic cut", "-33.3%", "-66.7%, not legal", "-50.0%", "+1%"]
    assert [text for text in texts if f"<!-- {text} -->" not in drawn] == []


def test_a_row_has_inductors_count_and_what_is_really_saved() -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), torch.randn(64, 16)
    ((graph, plans),) = torchs_plans(model, x, budgets=[1.0])
    subject = StrategySubject(MLP, model, (x,), graph, plans[1.0])
    plan, _ = subject.cut(MultiRead())
    for _ in range(2):  # also when Dynamo has seen the very same step
        (row,) = subject.measured("cut", remat.compile(model, plan=plan, dynamic=False), plan)
        kernels = inductor_kernels(model, x, plans=plan)
        assert (row.bytes, row.kernels) == (sum(kernel.bytes for kernel in kernels), len(kernels))
        assert row.saved_bytes == PlanFacts.of(graph, plan).saved_bytes
        assert row.legal
    assert subject.plans == {"cut": plan}
