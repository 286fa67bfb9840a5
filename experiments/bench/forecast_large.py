"""Forecasts training a Llama of 70B parameters, without its memory: `python -m experiments.bench.forecast_large`.

The model is that of `transformers`, at the sizes of Llama 3 70B (80 layers, 8,192 wide), in bfloat16, with AdamW, one
sequence of 4,096 words, of fake tensors. Written down are the forecast under PyTorch's plan and under half of what that
saves, and what it took: seconds of this process, and the most memory that it held.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch._subclasses import FakeTensorMode

import remat
from costmodels import MemoryBudget
from experiments.models.hugging_face import NextToken
from experiments.models.workloads import Sample
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.predict.whole_step import Forecast

LAYERS, WORDS = 80, 4096


def llama(layers: int = LAYERS, words: int = WORDS) -> Sample:
    """Makes a Llama at the sizes of Llama 3 70B, with its argument: fake tensors."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes: dict[str, Any] = {
        "vocab_size": 128_256,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": layers,
    }
    config = LlamaConfig(**sizes, num_attention_heads=64, num_key_value_heads=8)
    with FakeTensorMode():
        decoder: Any = AutoModelForCausalLM
        model = decoder.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        return NextToken(model), (torch.randint(1, 100, (1, words)),)


def told(layers: int = LAYERS) -> Forecast:
    """Forecasts it."""
    model, args = llama(layers)
    return remat.forecast(model, *args, optimizer=torch.optim.AdamW, cost_models=[MemoryBudget(0.5)])


def main(
    layers: Annotated[int, typer.Option(help="of the model")] = LAYERS,
    output: Annotated[Path, typer.Option(help="where to write")] = RESULTS / "forecast_large.json",
) -> None:
    """Forecasts the model, prints it, and writes it down."""
    start = time.process_time()
    found = told(layers)
    took: dict[str, Any] = {
        "process_s": round(time.process_time() - start, 1),
        "held_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(found, took, sep="\n")
    sizes = ("parameter_bytes", "gradient_bytes", "input_bytes")
    plans = {
        plan.name: {key: getattr(plan, key) for key in ("saved_bytes", "first_bytes", "later_bytes")}
        for plan in found.plans
    }
    document = {
        "provenance": provenance(gpu=False),
        "layers": layers,
        "took": took,
        **{size: getattr(found, size) for size in sizes},
        "state_bytes": found.optimizer.state_bytes,
        "plans": plans,
    }
    write_results(output, document)


if __name__ == "__main__":
    typer.run(main)
