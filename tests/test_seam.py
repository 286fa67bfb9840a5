"""The seam: one room knows torch's private names, and what it exchanges in torch is its own thread's, and put back."""

from __future__ import annotations

import ast
import contextlib
import contextvars
import gc
import re
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch
from depth import deep
from torch import Tensor, fx, nn
from torch._functorch import partitioners
from torch._inductor.graph import GraphLowering
from torch.utils.checkpoint import CheckpointPolicy

import remat
from experiments.accuracy.live_kernels import visited
from remat.pytorch.inductor.scheduled import counting_kernels
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.seam import thread_patch, torch_names, torch_settings
from remat.pytorch.seam.internals import USED, internals
from remat.pytorch.seam.thread_patch import in_place, thread_local_patch, torchs_own
from remat.pytorch.seam.torch_partitioner import partition

ROOT = Path(__file__).parents[1]


def model() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)), torch.ones(4, 8)


def joint_module(*step: Any) -> tuple[fx.GraphModule, int]:
    """A joint graph of its own, and how many outputs are of the forward pass."""
    found: list[tuple[fx.GraphModule, int]] = []

    def keep(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        copy = fx.Graph()
        copy.output(copy.graph_copy(joint_graph, {}))
        found.append((fx.GraphModule(joint_graph.owning_module, copy), num_fwd_outputs))

    visit_joint_graphs(keep, *(step or model()))
    return found[0]


def handed_over_by_torch(module: fx.GraphModule, num_fwd_outputs: int) -> list[str]:
    """What PyTorch's own partitioner hands to the backward pass."""
    _, backward = partitioners.min_cut_rematerialization_partition(module, (), num_fwd_outputs=num_fwd_outputs)
    return [node.name for node in backward.graph.find_nodes(op="placeholder")]


def in_another_thread(call: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(timeout=300)  # a compiler in it may take a minute
    assert results, "the other thread failed, or waits"
    return results[0]


def test_a_partition_in_another_thread_gets_pytorchs_own_choice() -> None:
    module, outputs = joint_module()
    other, again = joint_module()[0], joint_module()[0]
    threads: list[int] = []
    theirs: list[list[str]] = []

    def ours(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            theirs.append(in_another_thread(lambda: handed_over_by_torch(other, outputs)))
        return list(node_info.inputs)

    partition(module, (), ours, num_fwd_outputs=outputs)
    assert threads == [threading.get_ident()]
    assert theirs == [handed_over_by_torch(again, outputs)]


def test_seeds_of_inductor_are_of_no_checkpointed_region() -> None:
    """torch 2.15 marks them as the first draw is marked, others do not: here they are marked whatever torch does."""
    module, outputs = joint_module(lambda x: nn.functional.dropout(x, 0.5), torch.ones(4, requires_grad=True))
    drawn = [node for node in module.graph.nodes if node.name.startswith("inductor")]
    for node in drawn:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    partition(module, (), lambda graph, info, _: list(info.inputs), num_fwd_outputs=outputs)
    assert [node.name for node in drawn if "recompute" not in node.meta] == ["inductor_seeds_default"]
    assert len(drawn) > 1


class Interrupted(Exception):
    pass


EXCHANGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the kernels of a compilation": counting_kernels,
    "kernels instead of code": partial(visited, print),
}
SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no caches": torch_settings.nothing_cached,
    "a fresh compilation": torch_settings.fresh_compilation,
    "no donated buffers": torch_settings.nothing_donated,
    "a budget": partial(torch_settings.partitioner_settings, activation_memory_budget=0.5),
}


def places() -> list[tuple[Any, str]]:
    """Where functions of torch are exchanged."""
    return [
        (internals("torch._inductor.scheduler").Scheduler, "codegen"),
        (GraphLowering, "compile_to_module"),
    ]


def settings() -> list[dict[str, Any]]:
    configs: list[Any] = [
        internals("torch._dynamo.config"),
        internals("torch._functorch.config"),
        torch.compiler.config,
        sys.modules["torch._inductor.config"],
    ]
    return [config.get_config_copy() for config in configs]


@pytest.mark.parametrize("name", [*EXCHANGES, *SETTINGS])
@pytest.mark.parametrize("fails", [False, True])
def test_all_that_is_exchanged_is_put_back(name: str, fails: bool) -> None:
    before, threads = settings(), torch.autograd.is_multithreading_enabled()
    owns = {place: vars(place[0])[place[1]] for place in places()}
    try:
        with (EXCHANGES | SETTINGS)[name]():
            exchanged = [place for place, own in owns.items() if vars(place[0])[place[1]] is not own]
            assert bool(exchanged) == (name in EXCHANGES)
            assert settings() != before
            if fails:
                raise Interrupted
    except Interrupted:
        pass
    assert all(vars(owner)[function] is own for (owner, function), own in owns.items())
    assert settings() == before
    assert torch.autograd.is_multithreading_enabled() == threads


@deep
def test_a_kernel_outlives_a_block_in_which_no_graph_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's `force_disable_caches` holds, each graph has a folder of its own, and compiles into it again."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        torch.compiler.reset()
        with counting_kernels() as kernels, torch.no_grad():
            torch.compile(lambda x: (x * 0.271828).sin())(torch.ones(64))  # no other test's kernel, loaded already
        assert kernels, "compiled anew"
    assert len({path.name for path in tmp_path.rglob("*.so")}) == len(list(tmp_path.rglob("*.so"))) > 0


def test_a_chooser_that_fails_leaves_torchs_own() -> None:
    own, (module, outputs) = partitioners.choose_saved_values_set, joint_module()

    def fails(*_: object) -> list[fx.Node]:
        assert partitioners.choose_saved_values_set is not own
        raise Interrupted

    with pytest.raises(Interrupted):
        partition(module, (), fails, num_fwd_outputs=outputs)
    assert partitioners.choose_saved_values_set is own


def greeting() -> str:
    return "torch's"


@pytest.fixture
def owner() -> Any:
    module: Any = ModuleType("owner")
    module.greet = greeting
    return module


class Other(threading.Thread):
    """A thread that exchanges the function, too, and hears what it says at the end of its block."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner, self.heard = owner, list[str]()
        self.entered, self.leave = threading.Event(), threading.Event()

    def run(self) -> None:
        with thread_local_patch(self.owner, "greet", lambda: "the other's"):
            self.entered.set()
            assert self.leave.wait(60)
            self.heard.append(self.owner.greet())

    def ended(self) -> list[str]:
        self.leave.set()
        self.join()
        return self.heard


def test_each_thread_has_what_it_exchanged_and_the_last_one_puts_torchs_back(owner: Any) -> None:
    thread = Other(owner)
    with thread_local_patch(owner, "greet", lambda: "ours"):
        thread.start()
        assert thread.entered.wait(60)
        assert (owner.greet(), torchs_own(owner, "greet")()) == ("ours", "torch's")
        with thread_local_patch(owner, "greet", lambda: "inside"):
            assert owner.greet() == in_place(owner, "greet")() == "inside"
        assert owner.greet() == "ours"
    assert owner.greet() == "torch's"
    assert owner.greet is not greeting  # the other thread is not done
    assert thread.ended() == ["the other's"]
    assert owner.greet is greeting


def test_a_thread_that_runs_in_a_copy_of_this_ones_context_has_torchs_own(owner: Any) -> None:
    """As `asyncio.to_thread` has it, and every new thread of a Python without a global lock."""
    with thread_local_patch(owner, "greet", lambda: "ours"):
        context = contextvars.copy_context()
        assert in_another_thread(lambda: context.run(owner.greet)) == "torch's"
    with thread_local_patch(owner, "greet", lambda: "later"):
        assert context.run(owner.greet) == "later"


def test_a_block_may_be_left_in_another_context_and_out_of_turn(owner: Any) -> None:
    """As happens to generators, and to tasks that take turns in one thread."""
    first, second = (thread_local_patch(owner, "greet", lambda name=name: name) for name in ("first", "second"))
    contextvars.copy_context().run(first.__enter__)
    second.__enter__()
    assert owner.greet() == "second"
    first.__exit__(None, None, None)
    assert owner.greet() == "second"
    second.__exit__(None, None, None)
    assert owner.greet is greeting


def test_another_one_who_exchanges_the_function_meanwhile_is_left_alone(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_local_patch(owner, "greet", lambda: "ours"):
        monkeypatch.setattr(owner, "greet", lambda: "theirs")
    assert owner.greet() == "theirs"
    monkeypatch.undo()
    assert owner.greet() == "torch's"  # by what stood in its place when they came
    with thread_local_patch(owner, "greet", lambda: f"not {torchs_own(owner, 'greet')()}"):
        assert owner.greet() == "not torch's"
    assert owner.greet is greeting


INTERRUPTED = {thread_patch.__file__, contextlib.__file__}
"""The code that enters and leaves a block."""


def interrupted_at_every_point(block: Callable[[], object], check: Callable[[], None]) -> int:
    """Interrupts what enters and leaves a block before each of its instructions in turn, and counts them."""
    points, done = 0, False
    gc.disable()  # it would close generators of earlier rounds in a later one
    while not done:
        left = points

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            inside = frame.f_code.co_filename in INTERRUPTED or frame.f_code is block.__code__
            if event == "opcode" and inside:
                if not left:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                left -= 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            block()
            done = True
        except KeyboardInterrupt:
            sys.settrace(before)
            check()  # while the traceback keeps every frame alive
        finally:
            sys.settrace(before)
        check()
        points += not done
    gc.enable()
    return points


def test_a_block_answers_nowhere_else_wherever_it_is_interrupted(owner: Any) -> None:
    """Before: a Ctrl-C at the first or last lines of a block left our function in torch's place."""

    @contextlib.contextmanager
    def outer() -> Iterator[None]:
        with thread_local_patch(owner, "greet", lambda: "outer"):
            yield

    heard: list[str] = []

    def block() -> None:
        with outer():
            heard.append(owner.greet())
            with thread_local_patch(owner, "greet", lambda: "ours"):
                heard.append(owner.greet())
            heard.append(owner.greet())

    def check() -> None:
        assert owner.greet() == in_place(owner, "greet")() == "torch's"
        assert in_another_thread(owner.greet) == "torch's"

    with ThreadPoolExecutor(1) as own:  # an interruption in a handler leaves its exception with the thread
        assert own.submit(interrupted_at_every_point, block, check).result() > 500
    assert heard[-3:] == ["outer", "ours", "outer"]
    assert owner.greet is greeting
    assert torchs_own(owner, "greet") is greeting


def test_torchs_own_is_put_back_whenever_a_signal_comes(owner: Any) -> None:
    """Before: a Ctrl-C in the last lines of a block left a stand-in in the place, though it answers as torch's own."""
    interrupted, is_over = 0, False

    def handler(*_: object) -> None:
        nonlocal is_over
        is_over = True  # what is raised while a generator is finalized is lost
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(2000):
            is_over = False
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 97))
                while not is_over:
                    with thread_local_patch(owner, "greet", lambda: "ours"):
                        pass
            except KeyboardInterrupt:
                interrupted += 1
            assert owner.greet is greeting
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 1000


def test_a_thread_that_enters_while_another_one_is_interrupted_keeps_what_it_exchanged() -> None:

    class Interrupting(ModuleType):
        """The other thread enters, and the signal comes, just when torch's own is put back."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if value is greeting and thread.ident is None:
                thread.start()
                assert thread.entered.wait(60)
                super().__setattr__(name, value)  # as if the other thread had been in time
                raise KeyboardInterrupt

    owner: Any = Interrupting("owner")
    vars(owner)["greet"] = greeting
    thread = Other(owner)
    with pytest.raises(KeyboardInterrupt), thread_local_patch(owner, "greet", lambda: "ours"):
        assert owner.greet() == "ours"
    assert thread.ended() == ["the other's"]
    assert owner.greet is greeting


def test_kernels_of_another_threads_compilation_are_not_counted() -> None:
    """And they are compiled: whoever looks at kernels instead of code does so alone."""

    def square(x: Tensor) -> Tensor:
        return x * x + 1

    def compiled() -> Tensor:
        return torch.compile(square)(torch.full((4,), 3.0))

    with counting_kernels() as kernels, visited(kernels.append):
        assert in_another_thread(compiled).tolist() == [10.0] * 4
    assert kernels == []


def test_everything_in_the_table_is_used_and_there() -> None:
    texts = {
        node.value
        for file in (ROOT / "remat/pytorch/seam").glob("*.py")
        if file.stem != "internals"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {path for path in USED if path not in texts} == set()
    for path in USED:
        internals(path)


@pytest.mark.parametrize("gone", ["choose_saved_values_set", "min_cut_rematerialization_partition"])
def test_a_torch_without_a_name_is_refused_with_the_name(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    internals.cache_clear()
    monkeypatch.delattr(partitioners, gone)
    with pytest.raises(
        remat.errors.UnsupportedTorch, match=rf"torch._functorch.partitioners.{gone}\(joint_.*\) is gone"
    ):
        internals("torch._functorch.partitioners")


def test_a_torch_without_a_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    internals.cache_clear()
    monkeypatch.setattr(partitioners, "choose_saved_values_set", lambda joint_graph, node_info: [])
    with pytest.raises(remat.errors.UnsupportedTorch, match=r"memory_budget\) is gone"):
        internals("torch._functorch.partitioners")


def test_a_torch_without_a_type_is_refused_when_pytorch_is_first_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: `import remat` does not import torch, and so not this module, either."""
    monkeypatch.delattr("torch._inductor.custom_graph_pass.CustomPartitionerFn")
    with pytest.raises(remat.errors.UnsupportedTorch, match="CustomPartitionerFn") as refused:
        runpy.run_path(torch_names.__file__)
    assert torch.__version__ in str(refused.value)


def private_names(file: Path) -> Iterator[str]:
    """Private modules of torch that a file imports or names, and private attributes of what is not its own."""
    for node in ast.walk(ast.parse(file.read_text())):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [node.value]
        yield from (name for name in found if re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", name))
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr):
            name = ast.unparse(node)
            if not name.startswith(("self.", "cls.", "torch.ops.")):  # names of operators are everyone's
                yield name


def test_only_the_seam_knows_torchs_private_names() -> None:
    seam = ROOT / "remat/pytorch/seam"
    rooms = (file for file in (ROOT / "remat/pytorch").rglob("*.py") if seam not in file.parents)
    plug_ins = (file for folder in ("solvers", "costmodels") for file in (ROOT / folder).rglob("*.py"))
    named = {str(file.relative_to(ROOT)): names for file in (*rooms, *plug_ins) if (names := list(private_names(file)))}
    assert named == {}
    assert "torch._ops.OpOverload" in list(private_names(seam / "torch_names.py"))
    assert "lowering._update_scheduler" in list(private_names(seam / "inductor_lowering.py"))
