"""Compiles every Triton kernel of the zoo's models for two GPUs that are not there: failures, registers, spills.

    python -m experiments.accuracy.compiled_zoo

writes `experiments/results/triton_code.json` and `.md`. A kernel takes a second for each configuration, so what is done
is kept in the folder of --kept, and not done again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import remat
from costmodels import ByteTraffic
from experiments.models.workloads import KERNEL_ZOO
from experiments.report import markdown as blocks
from experiments.report.provenance import provenance
from experiments.report.result_files import write_results
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.inductor.triton_code import PassCode, triton_code
from remat.pytorch.seam.compiled_kernels import compiled

DEVICES = ("h100", "a100")
PLANS: dict[str, remat.CostModel] = {"default cut": ByteTraffic(), "aggressive": ByteTraffic(mode="aggressive")}
RESULTS = Path(__file__).parent.parent / "results" / "triton_code.json"


def row_of(model: str, device: str, plan: str, known: Known) -> dict[str, Any]:
    """Compiles all kernels of a model under a plan; equal kernels, but for their names, once."""
    torch.manual_seed(0)
    module, args = KERNEL_ZOO[model]()
    graph = remat.capture(module, *args, device=device)
    with virtual_gpu(device):
        passes = triton_code(Scheduled(graph, device=device), remat.choose(graph, PLANS[plan]).plan)
        kernels = [kernel for code in passes for kernel in _kernels(code, known)]
    return {"device": device, "model": model, "plan": plan, **_counts(passes), "kernels": kernels}


class Known:
    """Keeps what was found of kernels in a file, a line each, by the hash of the source without the kernel's name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, dict[str, Any]] = {}
        if file.exists():
            self.found = dict(json.loads(line) for line in file.read_text().splitlines())

    def of(self, source: str, name: str) -> dict[str, Any]:
        """Finds what is known of a kernel, or compiles it."""
        key = hashlib.sha256(source.replace(name, "").encode()).hexdigest()
        if key not in self.found:
            self.found[key] = _compiled(source, name)
            with self.file.open("a") as file:
                print(json.dumps([key, self.found[key]]), file=file)
        return self.found[key]


def _counts(passes: tuple[PassCode, ...]) -> dict[str, int]:
    both = [(kernel, names) for code in passes for kernel, names in zip(code.kernels, code.launched, strict=True)]
    return {
        "launches": sum(len(names) for _, names in both),
        "calls": sum(not names for _, names in both),
        "bytes": sum(kernel.bytes for kernel, _ in both),
    }


def _kernels(code: PassCode, known: Known) -> Iterator[dict[str, Any]]:
    launches = Counter(name for names in code.launched for name in names)
    for name, source in code.sources.items():
        yield {"pass": code.name, "name": name, "launches": launches[name], **known.of(source, name)}


def _compiled(source: str, name: str) -> dict[str, Any]:
    try:
        cubins = compiled(source, name)
    except Exception as error:  # a failure is a result here
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {
        "configurations": len(cubins),
        "registers": max(cubin.registers for cubin in cubins),
        "spilling": [cubin.configuration for cubin in cubins if cubin.spilled_bytes],
        "spilled_bytes": max(cubin.spilled_bytes for cubin in cubins),
        "shared_bytes": max(cubin.shared_bytes for cubin in cubins),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: a row for each GPU, model and plan, then what failed and what spills."""
    rows: list[dict[str, Any]] = document["rows"]
    table = [
        (
            *(row[name] for name in ("device", "model", "plan", "launches", "calls")),
            len(row["kernels"]),
            sum(kernel.get("configurations", 0) for kernel in row["kernels"]),
            sum("error" in kernel for kernel in row["kernels"]),
            sum(len(kernel.get("spilling", ())) for kernel in row["kernels"]),
            sum(_always_spills(kernel) for kernel in row["kernels"]),
            max(kernel.get("registers", 0) for kernel in row["kernels"]),
            max(kernel.get("shared_bytes", 0) for kernel in row["kernels"]),
        )
        for row in rows
    ]
    headings = ("GPU", "model", "plan", "launches", "calls", "kernels", "configurations", "failures")
    spills = ("configurations that spill", "kernels that spill in each")
    wrong = [
        f"{row['device']}, {row['model']}, {row['plan']}, {kernel['pass']}: `{kernel['name']}` "
        + (kernel.get("error") or f"up to {kernel['spilled_bytes']} bytes, in {_listed(kernel)}")
        for row in rows
        for kernel in row["kernels"]
        if "error" in kernel or kernel["spilled_bytes"]
    ]
    return blocks.page(
        "Triton kernels of the zoo, compiled without a device",
        "Every kernel that TorchInductor writes for the two passes of a plan, in every configuration that it would "
        "time on the GPU to keep the fastest, compiled by Triton and its assembler. Nothing was run, on no GPU.",
        "Inductor passes over a configuration whose threads need more than 64 bytes of local memory, which is where "
        "registers are spilled to. Registers are those of a thread, shared memory is that of a block: each the largest "
        "of all kernels and configurations.",
        blocks.table((*headings, *spills, "registers", "shared memory (bytes)"), table),
        blocks.section("Failures and spills", blocks.bullets(wrong) or "There are none."),
        f"Made by {blocks.cited(document['provenance'], 'experiments.accuracy.compiled_zoo')}, triton "
        f"{document['provenance']['triton']}.",
    )


def _always_spills(kernel: Mapping[str, Any]) -> bool:
    return "error" not in kernel and len(kernel["spilling"]) == kernel["configurations"]


def _listed(kernel: Mapping[str, Any]) -> str:
    """Names the configurations that spill."""
    named = (
        ", ".join(f"{key} {value}" for key, value in configuration.items()) for configuration in kernel["spilling"]
    )
    return f"{len(kernel['spilling'])} of {kernel['configurations']} configurations ({'; '.join(named)})"


def main() -> None:
    """Compiles what is not kept, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path, default=Path("build/compiled_zoo"), help="folder of what is done")
    parser.add_argument("--plans", nargs="*", default=["default cut"], choices=list(PLANS))
    arguments = parser.parse_args()
    arguments.kept.mkdir(parents=True, exist_ok=True)
    known = Known(arguments.kept / "kernels.jsonl")
    rows: list[dict[str, Any]] = []
    for plan, device, model in itertools.product(arguments.plans, DEVICES, KERNEL_ZOO):
        kept = arguments.kept / f"{re.sub('[^a-z0-9]+', '-', f'{device} {model} {plan}'.lower())}.json"
        if not kept.exists():
            print(plan, device, model, flush=True)
            kept.write_text(json.dumps(row_of(model, device, plan, known)))
        rows.append(json.loads(kept.read_text()))
    document = {"provenance": provenance(gpu=False), "rows": rows}
    write_results(RESULTS, document, markdown(document))


if __name__ == "__main__":
    main()
