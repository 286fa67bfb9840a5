"""The corpus: files, index and page agree; each instance says where it comes from; list, show, get."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from commands import answer, run
from depth import deep_except
from torch import nn

from experiments.corpus.__main__ import main
from experiments.corpus.catalogue import recipes
from experiments.corpus.corpus_index import entry_of, pages
from experiments.models import diffusion, published, setups, video, workloads
from experiments.models.recipe import capture
from remat import Graph, NotInstalled
from remat.errors import InvalidGraph, UnknownName
from remat.facts.corpus import INDEX, Corpus

CORPUS = Corpus.open()
NAMES = [entry.name for entry in CORPUS.entries]
SMALLEST = min(CORPUS.entries, key=lambda entry: entry.values).name
LARGE = [entry.name for entry in CORPUS.entries if entry.values > 50_000]
each_instance = pytest.mark.parametrize("name", deep_except([name for name in NAMES if name not in LARGE], NAMES))


@cache
def graph_of(name: str) -> Graph:
    return CORPUS.graph(name)


@each_instance
def test_the_index_says_what_is_in_the_file(name: str) -> None:
    assert entry_of(CORPUS.path(name)) == CORPUS.entry(name)


@each_instance
def test_provenance_is_complete(name: str) -> None:
    meta, recipe = graph_of(name).meta, recipes()[name]
    for key in ("model", "family", "sizes", "dtype", "torch", "captured", "python", "code", "device", "commit"):
        assert meta[key], key
    assert meta["instance"] == name
    assert name in meta["command"]
    assert bool(meta["cite"]) == (meta["family"] != "small")
    fused = any("scaled_dot_product" in op for op in graph_of(name).ops)
    assert fused == ("as one operator" in meta["model"] or "fused attention" in meta["model"])
    assert meta["device"].startswith("cuda" if recipe.device else "cpu")
    assert (meta["model"], meta["dtype"], meta["cite"]) == (recipe.model, recipe.dtype_name, recipe.cite)
    if recipe.family != "small":  # those say a file, by the name that it had when they were captured
        assert meta["sizes"] == recipe.sizes


def test_there_is_an_instance_for_each_recipe_and_no_other_file() -> None:
    assert set(NAMES) == recipes().keys()
    assert len(NAMES) == len(set(NAMES)) >= 25
    files = {path.name for path in CORPUS.folder.iterdir() if path.name != "__pycache__"}
    assert files == {INDEX, "README.md", "LIST.md", *(f"{name}.json.gz" for name in NAMES)}


def test_sizes_span_two_orders_of_magnitude_in_few_megabytes() -> None:
    values = [entry.values for entry in CORPUS.entries]
    assert min(values) < 200
    assert max(values) > 20_000
    assert sum(entry.file_bytes for entry in CORPUS.entries) < 4 * 2**20


def test_the_pages_are_those_of_the_index_and_short() -> None:
    for name, text in pages(CORPUS.entries).items():
        assert (CORPUS.folder / name).read_text() == text
    assert len((CORPUS.folder / "README.md").read_text().split()) <= 1200


@pytest.mark.skipif(
    torch.__version__.split("+")[0] != graph_of(SMALLEST).meta["torch"].split("+")[0],
    reason="another version of torch makes another graph",
)
@pytest.mark.parametrize("name", [SMALLEST, "qei-8"])
def test_a_recipe_makes_its_file_again(name: str) -> None:
    again = capture(recipes()[name])
    assert replace(again, meta=graph_of(name).meta) == graph_of(name)


def test_the_command_makes_what_is_named_with_index_and_page(tmp_path: Path) -> None:
    main(only=[SMALLEST], output=tmp_path)
    corpus = Corpus.open(tmp_path)
    assert [(entry.name, entry.values) for entry in corpus.entries] == [(SMALLEST, CORPUS.entry(SMALLEST).values)]
    written = pages(corpus.entries)
    assert {name: (tmp_path / name).read_text() for name in written} == written
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, *written, f"{SMALLEST}.json.gz"}
    with pytest.raises(typer.BadParameter, match=f"did you mean '{SMALLEST}'"):
        main(only=[SMALLEST + "s"], output=tmp_path)


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: workloads.ResNet((2, 2, 2, 2), 64, 1000), 11_689_512),
        (published.resnet50, 25_557_032),
        (lambda: published.resnet50((3, 8, 36, 3)), 60_192_808),
        (lambda: published.VGG((2, 2, 3, 3, 3)), 138_357_544),
        (published.densenet121, 7_978_856),
        (published.mobilenet_v2, 3_504_872),
        (published.efficientnet_b0, 5_288_548),
        (published.regnetx, 9_190_136),
        (diffusion.DiffusionUNet, 859_520_964),
        (lambda: diffusion.DiT(28, 1152, 16), 674_834_720),  # published with 256 x 1152 fixed positions: 675,129,632
        (video.VideoDiT, 1_418_996_800),
    ],
)
def test_nets_have_as_many_parameters_as_published(build: Callable[[], nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        assert sum(weight.numel() for weight in build().parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"), [("hf-gpt2", 124_439_808), ("hf-bert-base", 109_514_298), ("hf-vit-base", 86_567_656)]
)
def test_configurations_are_the_published_ones(name: str, parameters: int) -> None:
    graph = graph_of(name)
    weights = [i for i in range(len(graph)) if graph.parameter[i] and graph.dtypes[i].startswith("float")]
    assert sum(math.prod(graph.shapes[i]) for i in weights) == parameters


def test_a_stage_of_a_pipeline_takes_a_gradient_and_returns_that_of_its_input() -> None:
    graph = graph_of("hf-llama3-8b-stage")
    given = [i for i in range(len(graph)) if graph.ops[i] == "placeholder" and not graph.parameter[i]]
    assert [graph.names[i] for i in given] == ["primals_1", "tangents_1"]
    weights = [graph.shapes[i] for i in range(len(graph)) if graph.parameter[i] and len(graph.shapes[i]) > 1]
    gradients = [graph.shapes[i] for i in range(len(graph)) if graph.gradient[i]]
    assert gradients.count((1, 8192, 4096)) == 1
    assert all(weight in gradients for weight in weights)


def test_gradients_in_float8_are_near_those_of_the_layer() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(64, 32, bias=False)).bfloat16()
    found: list[list[torch.Tensor]] = []
    for model in layer, setups.in_float8(deepcopy(layer), ("0",)):
        x = torch.randn(16, 4, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
        out = model(x)
        out.sin().sum().backward()
        found.append([out, x.grad, next(model.parameters()).grad])
    for exact, near in zip(*found, strict=True):
        assert 0 < (near.float() - exact.float()).norm() < 0.1 * exact.float().norm()


def test_what_a_patch_of_a_video_sees_depends_on_the_distance() -> None:
    """Queries and keys turn by their place, so that their product knows only how far apart they are."""
    turn = video.rotations((4, 4, 4), 12)
    query, key = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
    queries, keys = (video.turned(x.expand(64, 12), turn) for x in (query, key))
    scores = (queries @ keys.T).view(4, 4, 4, 4, 4, 4)
    torch.testing.assert_close(scores[1:, 1:, 1:, 1:, 1:, 1:], scores[:-1, :-1, :-1, :-1, :-1, :-1], atol=1e-5, rtol=0)
    assert scores[0, 0, 0].std() > 0.1


def test_hypervolume_improvement_is_the_area_of_the_union() -> None:
    acquisition = published.ExpectedHypervolumeImprovement(1, 3, 2).double()
    corners = torch.tensor([[1.0, 3.0], [2.0, 2.0], [3.0, 0.5]], dtype=torch.double)
    acquisition.samples = lambda *given: corners.expand(1, 1, 3, 2)  # type: ignore[method-assign]
    lower = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.double)
    upper = torch.tensor([[torch.inf, 1.0], [torch.inf, torch.inf]], dtype=torch.double)
    unit = itertools.product(range(60), repeat=2)
    area = sum(any(x / 20 < a and y / 20 < b for a, b in corners.tolist()) for x, y in unit) / 400
    nothing = torch.empty(0)
    assert -acquisition(nothing, nothing, nothing, lower, upper).item() == pytest.approx(area)


def test_posterior_samples_have_the_mean_and_variance_of_the_process() -> None:
    torch.manual_seed(0)
    acquisition = published.ExpectedImprovement(1, 2, 1).double()
    points, targets = torch.tensor([[0.1], [0.5]]).double(), torch.tensor([[1.0, -1.0]]).double()
    with torch.no_grad():
        acquisition.candidates.copy_(torch.tensor([[[0.1], [0.9]]]))
        draws = torch.randn(20_000, 1, 2, 1).double()
        samples = acquisition.samples(points, targets, draws)[:, 0, :, 0]
    gram = published.rbf(points, points) + 1e-4 * torch.eye(2).double()
    across = published.rbf(points, acquisition.candidates[0])
    mean = across.T @ torch.linalg.solve(gram, targets.T)
    covariance = published.rbf(acquisition.candidates[0], acquisition.candidates[0]) - across.T @ torch.linalg.solve(
        gram, across
    )
    torch.testing.assert_close(samples.mean(0), mean[:, 0], atol=0.03, rtol=0)
    torch.testing.assert_close(samples.T.cov(), covariance, atol=0.03, rtol=0)


def test_list_names_all_and_a_family_only_its_own() -> None:
    assert [row["name"] for row in answer("corpus", "list")] == NAMES
    out = run("corpus", "list", "--family", "convolution").stdout
    assert "resnet50" in out
    assert "lstm-16" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_show_tells_facts_and_provenance() -> None:
    document: Any = answer("corpus", "show", "resnet50")
    graph = graph_of("resnet50")
    assert document["values"] == len(graph) == sum(document["regions"].values())
    assert document["provenance"] == dict(graph.meta)
    assert "ResNet-50" in run("corpus", "show", "resnet50").stdout


def test_get_copies_the_graph(tmp_path: Path) -> None:
    run("corpus", "get", SMALLEST, "-o", tmp_path / "mine.json.gz")
    assert Graph.load(tmp_path / "mine.json.gz") == graph_of(SMALLEST)


def test_unknown_names_and_missing_folders_are_explained(tmp_path: Path) -> None:
    assert "--folder" in run("corpus", "list", "--folder", tmp_path, code=1).stderr
    with pytest.raises(UnknownName, match="remat corpus list"):
        CORPUS.graph("nothing like it")
    with pytest.raises(NotInstalled, match="source repository"):
        Corpus.open(tmp_path)


def test_files_and_indices_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    shutil.copyfile(CORPUS.folder / INDEX, tmp_path / INDEX)
    with pytest.raises(InvalidGraph, match="missing"):
        Corpus.open(tmp_path).path(SMALLEST)
    (tmp_path / f"{SMALLEST}.json.gz").write_bytes(b"something else")
    with pytest.raises(InvalidGraph, match="not the file"):
        Corpus.open(tmp_path).graph(SMALLEST)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "remat.corpus", "version": 2, "instances": []}',
        '{"format": "remat.corpus", "version": 1, "instances": [{"name": "x"}]}',
        '{"format": "remat.corpus", "version": 1, "instances": [3]}',
    ],
)
def test_damaged_indices_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InvalidGraph, match=INDEX):
        Corpus.open(tmp_path)


def test_a_graph_without_provenance_is_no_instance(tmp_path: Path) -> None:
    replace(graph_of(SMALLEST), meta={"model": "?"}).save(tmp_path / "x.json.gz")
    with pytest.raises(InvalidGraph, match="meta lacks instance"):
        entry_of(tmp_path / "x.json.gz")
