"""Reads the code that TorchInductor writes for a scheduled graph, and which kernel each node launches."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from remat.pytorch.seam.internals import internals


class WrittenCode(NamedTuple):
    """Holds Inductor's code of one graph."""

    text: str  # a Python module; its `call` takes a list of tensors and runs the graph
    sources: dict[str, str]  # name of a Triton kernel in the text -> its Python module
    # for each launch of a Triton kernel, in order: the names of the scheduler's node and of the kernel.
    launches: tuple[tuple[str, str], ...]


def written_code(lowering: Any) -> WrittenCode:
    """Makes Inductor write the code of a scheduled `GraphLowering`; can be called once per graph."""
    internals("torch._inductor.codegen.wrapper")  # checks the names that are used below
    wrapper, scheduler = lowering.wrapper_code, lowering.scheduler
    launches: list[tuple[str, str]] = []
    write_call = wrapper.generate_kernel_call

    def noted(kernel_name: str, *args: Any, **kwargs: Any) -> Any:
        launches.append((scheduler.current_node.get_name(), kernel_name))
        return write_call(kernel_name, *args, **kwargs)

    wrapper.generate_kernel_call = noted
    # Like GraphLowering.codegen(), but without its second scheduling.
    wrapper.push_codegened_graph(lowering)
    scheduler.codegen()
    text = wrapper.generate(lowering.is_inference)[0].value
    wrapper.pop_codegened_graph()
    return WrittenCode(text, _sources(text), tuple(launches))


# The first two arguments of each `async_compile.triton(...)`: name and source.
def _sources(text: str) -> dict[str, str]:
    calls = (call for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call))
    return {
        ast.literal_eval(call.args[0]): ast.literal_eval(call.args[1])
        for call in calls
        if ast.unparse(call.func) == "async_compile.triton"
    }
