"""`remat inspect kernels`: what is compiled is what Inductor schedules, and what is said of it is so."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run
from examples import cosines
from torch import nn

import remat
from remat import Graph, Plan
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.cubins import PassCode, triton_code
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.seam.triton_compiler import compile_kernel

KERNELS = "inspect", "kernels"


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    return remat.capture(nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)), torch.randn(4, 8))


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return remat.choose(graph).plan


@pytest.fixture(scope="module")
def code(graph: Graph, plan: Plan) -> tuple[PassCode, ...]:
    return triton_code(Scheduled(graph, device="a100"), plan)


def test_each_kernel_that_inductor_schedules_is_written(graph: Graph, plan: Plan, code: tuple[PassCode, ...]) -> None:
    kernels = [kernel for each in code for kernel in each.kernels]
    assert Scheduled(graph, device="a100").kernels(plan) == kernels
    for each in code:
        assert [bool(names) for names in each.launched] == [kernel.generated for kernel in each.kernels]
        assert {name for names in each.launched for name in names} == set(each.sources)
        assert sum(each.text.count(f"{name}.run(") for name in each.sources) == sum(map(len, each.launched))
    assert [each.name for each in code] == ["forward", "backward"]


def test_a_pass_takes_what_the_other_one_saves(graph: Graph, plan: Plan, code: tuple[PassCode, ...]) -> None:
    forward, backward = code
    saved = {name for name in plan.saved if not graph.input[graph.index[name]]}
    assert saved <= set(forward.outputs)
    assert saved <= set(backward.inputs) <= {*forward.outputs, *graph.names}


def test_json_folder_and_table_agree(graph: Graph, plan: Plan, tmp_path: Path) -> None:
    file, plan_file, folder = tmp_path / "graph.json.gz", tmp_path / "plan.json", tmp_path / "kernels"
    graph.save(file)
    plan.save(plan_file)
    done = run(*KERNELS, file, "--plan", plan_file, "--device", "a100", "-o", folder, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert "not captured for a GPU" in done.stderr
    kernels = Scheduled(graph, device="a100").kernels(plan)
    for part, backward in zip(found["passes"], (False, True), strict=True):
        generated, called = (
            [k.bytes for k in kernels if k.backward == backward and k.generated == made] for made in (True, False)
        )
        assert sum(kernel["launches"] for kernel in part["kernels"]) == len(generated)
        assert sum(kernel["bytes"] for kernel in part["kernels"]) == sum(generated)
        assert (part["calls"], part["called_bytes"]) == (len(called), sum(called))
        assert (folder / f"{part['pass']}.py").read_text().count("def call(") == 1
        for kernel in part["kernels"]:
            cubins = sorted((folder / part["pass"]).glob(f"{kernel['name']}.*.cubin"))
            assert len(cubins) == len(kernel["configurations"]) > 0
            assert all(cubin.read_bytes().startswith(b"\x7fELF") for cubin in cubins)
            assert all(".target sm_80" in cubin.with_suffix(".ptx").read_text() for cubin in cubins)
            assert f"def {kernel['name']}(" in (folder / part["pass"] / f"{kernel['name']}.py").read_text()
            for configuration in kernel["configurations"]:
                assert 8 <= configuration["registers"] <= 255
                assert configuration["spilled_bytes"] == 0


def test_spilled_registers_are_said(code: tuple[PassCode, ...]) -> None:
    """A block that is far too large for one warp has more values than there are registers."""
    name, source = next((name, source) for name, source in code[0].sources.items())
    too_large = f"{source}\nimport triton\n{name}.configs = [triton.Config({{'XBLOCK': 512}}, num_warps=1)]\n"
    with virtual_gpu("a100"):
        fitting, (spilling,) = compile_kernel(source, name), compile_kernel(too_large, name)
    assert {cubin.spilled_bytes for cubin in fitting} == {0}
    assert spilling.spilled_bytes > 0


def test_errors_without_tracebacks(graph: Graph, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "graph.json.gz", tmp_path / "other.json"
    graph.save(file)
    assert "there are: cpu, cuda, a100" in run(*KERNELS, file, "--device", "b9000", code=2).stderr
    Plan(("nothing",), ()).save(other)
    assert "nothing" in run(*KERNELS, file, "--plan", other, code=1).stderr
    cosines().save(file)
    assert "cannot be rebuilt" in run(*KERNELS, file, code=1).stderr
    assert "a GPU" in run(*KERNELS, file, "--device", "cpu", code=2).stderr

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("remat.pytorch.seam.virtual_gpu.version", missing)
    monkeypatch.setattr("remat.cli.options.PlanOptions.plan_of", lambda *_: pytest.fail("it was solved first"))
    assert "pip install '.[gpu]'" in run(*KERNELS, file, code=1).stderr
