"""Predicted kernels for GPUs: what each rule of Triton's backend does, and whose kernels they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from remat import GraphBuilder, InvalidOption, Plan
from remat.facts.graph import Graph
from remat.predict.kernels import Fuser, kernels
from remat.predict.traffic import predict_traffic
from remat.pytorch import virtual_gpu


def of_device(device: str) -> Graph:
    """A cosine and its gradient, captured on a device."""
    g = GraphBuilder()
    g.output(g.op("cos", g.input("x", bytes=4), name="y"))
    g.gradient(g.op("neg", g.tangent("dy", bytes=4), name="dx"))
    return replace(g.build(), meta={"device": device} if device else {})


@pytest.mark.parametrize(("device", "backend"), [("", "cpu"), ("cpu", "cpu"), ("cuda", "triton")])
def test_the_backend_is_that_of_the_graphs_device_and_the_result_says_so(device: str, backend: str) -> None:
    graph = of_device(device)
    found = predict_traffic(graph, Plan((), ()))
    assert found.backend == Fuser(graph).backend.name == backend
    assert ("Triton" in str(found)) == (backend == "triton")
    other = "cpu" if backend == "triton" else "triton"
    assert predict_traffic(graph, Plan((), ()), backend=other).backend == other


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(InvalidOption, match="backend must be one of cpu, triton, got 'tritn'; did you mean 'triton'"):
        kernels(of_device(""), Plan((), ()), backend="tritn")


def test_convolutions_on_a_gpu_that_is_not_there_have_the_layout_of_cudnn() -> None:
    """Channels last where image or filters are, but not in double precision; and nothing is left exchanged."""
    asked = torch._C.__dict__["_conv_determine_backend_memory_format"]
    with virtual_gpu("h100"), FakeTensorMode():
        for dtype, innermost in ((torch.float32, 1), (torch.float64, 3)):
            image = torch.empty(2, 8, 9, 9, device="cuda", dtype=dtype)
            filters = torch.empty(8, 8, 3, 3, device="cuda", dtype=dtype)
            last = F.conv2d(image.to(memory_format=torch.channels_last), filters)
            assert last.stride(innermost) == F.conv2d(image, filters).stride(3) == 1
    assert torch._C.__dict__["_conv_determine_backend_memory_format"] is asked
