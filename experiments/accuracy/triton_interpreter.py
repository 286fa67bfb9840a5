"""Runs the Triton kernels that TorchInductor writes in Triton's interpreter, and compares with the joint graph.

    python -m experiments.accuracy.triton_interpreter

writes `experiments/results/triton_interpreter.json` and `.md`; what is done is kept, and not done again. No GPU is
needed. The process has triton interpret all kernels, and changes modules for good (see `interpreted_kernels`), so that
tests run it as a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.models.tiny_workloads import TINY_ZOO
from experiments.report import markdown as blocks
from experiments.report.provenance import provenance
from experiments.report.result_files import write_results

RESULTS = Path(__file__).parents[1] / "results" / "triton_interpreter.json"

FLOAT32_BOUND = 1e-5
"""The most by which an output or a gradient may differ from the joint graph's, of its largest entry."""

BFLOAT16_BOUND = 2.0
"""How many times as far from double precision as eager PyTorch a tensor of the kernels may be."""

PRECISIONS = ("float32", "bfloat16")
CALLED_IN_BFLOAT16 = ("GPT, fused attention", "nn.TransformerEncoder")
"""Models whose attention is an operator of cuDNN in bfloat16, which has no formula here: compared in float32 alone."""


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a row is within the bound for its precision."""
    if row["precision"] == "float32":
        return bool(row["to_joint_graph"] <= FLOAT32_BOUND)
    return bool(row["times_eager"] <= BFLOAT16_BOUND)


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: a row for each model, precision and plan, then what became of wrong kernels."""
    rows = [
        (
            *(row[name] for name in ("model", "precision", "plan", "kernels", "calls")),
            *(f"{row[name]:.1e}" for name in ("to_joint_graph", "kernels_error", "eager_error")),
            f"{row['times_eager']:.2f}",
            "yes" if holds(row) else "**no**",
        )
        for row in document["rows"]
    ]
    headings = ("model", "precision", "plan", "kernels", "calls", "to the joint graph", "kernels' error")
    mutants = [
        (
            row["model"],
            row["precision"],
            row["wrong"],
            row["wrong"] - len(row["missed"]),
            f"{row['smallest_error']:.1e}",
        )
        for row in document["wrong_kernels"]
    ]
    return blocks.page(
        "Triton kernels in Triton's interpreter",
        "The kernels that TorchInductor writes for an H100, of the models of the zoo at tiny sizes, run in Triton's "
        "interpreter on a CPU, each in its configuration with the largest blocks. Every output and gradient is "
        "compared: with the joint graph run by eager PyTorch in the same precision, and both of these with the joint "
        "graph in double precision. An error is the largest difference of an entry, over the largest entry of its "
        "tensor; of all tensors the largest is shown.",
        f"In float32, the kernels may be {FLOAT32_BOUND:.0e} from the joint graph. In bfloat16, eager PyTorch rounds "
        "after every operator, and a kernel only where it writes to memory: both are off, and not by the same. So "
        f"there each tensor may be at most {BFLOAT16_BOUND:g} times as far from double precision as eager PyTorch's "
        "and one more rounding, of 2^-8, are together. Not compared in bfloat16 are models whose attention is an "
        f"operator of cuDNN there: {' and '.join(CALLED_IN_BFLOAT16)}.",
        blocks.table((*headings, "eager's error", "times eager's", "within the bound"), rows),
        blocks.section(
            "Wrong kernels",
            "Of each kernel of the default cut in turn, the last sum, difference or product is exchanged for another "
            "operation, or, where it has none, what it stores is doubled: does the bound refuse the result?",
            blocks.table(("model", "precision", "wrong kernels", "refused", "smallest error"), mutants),
            blocks.bullets(f"{row['model']}, {row['precision']}: not refused: {kernel}"
                           for row in document["wrong_kernels"] for kernel in row["missed"]),
        ),
        f"Made by {blocks.cited(document['provenance'], 'experiments.accuracy.triton_interpreter')}, triton "
        f"{document['provenance']['triton']}.",
    )  # fmt: skip


def main() -> None:
    """Compares what is asked for; without restrictions, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(TINY_ZOO), help="models")
    parser.add_argument("--precision", nargs="*", default=list(PRECISIONS), help="float32, bfloat16")
    parser.add_argument(
        "--plans", nargs="*", help="names of plans; all in float32 and the first in bfloat16 if left out"
    )
    parser.add_argument(
        "--wrong", nargs="*", default=["LayerNorm-GeLU MLP", "dropout MLP"], help="models to make wrong kernels of"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file to write; the page stands beside it")
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path("build/triton_interpreter.jsonl"),
        help="file that keeps a line for each row, so that none is made twice",
    )
    arguments = parser.parse_args()

    os.environ["TRITON_INTERPRET"] = "1"  # triton looks when it is first imported, which is here
    warnings.filterwarnings("ignore")
    from experiments.accuracy.interpreted_kernels import prepare
    from experiments.accuracy.interpreted_model import PLANS, InterpretedModel

    prepare()
    kept = _Kept(arguments.kept)
    rows: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    for model in arguments.only:
        for precision in arguments.precision:
            if precision == "bfloat16" and model in CALLED_IN_BFLOAT16:
                continue
            subject: InterpretedModel | None = None
            for plan in arguments.plans or (PLANS if precision == "float32" else PLANS[:1]):
                row = kept.find("row", model, precision, plan)
                if row is None:
                    subject = subject or InterpretedModel.of(model, precision)
                    started = time.monotonic()
                    row = {"model": model, "precision": precision, "plan": plan, **subject.compared(plan)}
                    row["s"] = round(time.monotonic() - started, 1)
                    kept.add("row", row, model, precision, plan)
                rows.append(row)
            if model in arguments.wrong:
                row = kept.find("wrong", model, precision)
                if row is None:
                    subject = subject or InterpretedModel.of(model, precision)
                    found = list(subject.mutated())
                    row = {
                        "model": model,
                        "precision": precision,
                        "wrong": len(found),
                        "missed": [each["kernel"] for each in found if holds({"precision": precision, **each})],
                        "smallest_error": min(each["to_joint_graph"] for each in found),
                    }
                    kept.add("wrong", row, model, precision)
                wrong.append(row)
    document = {"provenance": provenance(gpu=False), "rows": rows, "wrong_kernels": wrong}
    write_results(arguments.output, document, markdown(document))


class _Kept:
    """Keeps what took long, a line each, under what it is about."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        self.found: dict[str, Any] = dict(json.loads(line) for line in lines)

    def find(self, *about: str) -> dict[str, Any] | None:
        return self.found.get(" | ".join(about))

    def add(self, kind: str, row: dict[str, Any], *about: str) -> None:
        with self.file.open("a") as file:
            print(json.dumps([" | ".join((kind, *about)), row]), file=file)


if __name__ == "__main__":
    main()
