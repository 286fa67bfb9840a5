"""Makes a key for torch's caches, from everything that can change a plan.

A setting is taken apart down to its plain values, so that a plug-in is found wherever it is: in a sum of sums, in a
list, or in any field. The source code of each plug-in is a part of the key, so that torch never reuses what an earlier
version of a cost model has planned. So is other data on which its prices depend (`CostModel.data`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from remat.answer.registry import estimator_names, find_estimator
from remat.answer.solver import Solver
from remat.errors import RematError
from remat.problem.costmodel import CostModel
from remat.problem.estimator import Estimator

_PACKAGE = Path(__file__).parents[2]


def key_of(*settings: object) -> str:
    """Hashes settings, and the source code that they use; the key is the same in every process."""
    digest = hashlib.sha256()
    for source in sorted(_PACKAGE.rglob("*.py")):
        digest.update(source.read_bytes())
    for part in _parts(settings, estimator_names()):
        digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest()


# Not by `repr`, which may leave out fields, and shortens long arrays. A text may name one of `estimators`.
def _parts(setting: object, estimators: Collection[str]) -> Iterator[bytes]:
    if isinstance(setting, CostModel | Estimator):
        yield setting.data().encode()
    if isinstance(setting, CostModel | Estimator | Solver):
        yield _source_of(type(setting))
    if isinstance(setting, np.ndarray):
        array = cast(NDArray[Any], setting)
        yield f"{array.dtype} {array.shape}".encode() + array.tobytes()
    elif isinstance(setting, set | frozenset):  # whose order differs from process to process
        members = cast(frozenset[Any], setting)
        yield from sorted(b"".join(_parts(member, estimators)) for member in members)
    elif (inner := _inner(setting)) is not None:
        yield b"%d parts" % len(inner)
        for part in inner:
            yield from _parts(part, estimators)
    else:
        yield repr(setting).encode()
        if isinstance(setting, str) and setting.partition(":")[0] in estimators:
            with suppress(RematError):  # a text that only looks like an estimator with options
                yield from _parts(find_estimator(setting), estimators)


def _inner(setting: object) -> Sequence[object] | None:
    if isinstance(setting, Mapping):
        return tuple(cast(Mapping[Any, Any], setting).items())
    if isinstance(setting, tuple | list):
        return cast(tuple[Any, ...] | list[Any], setting)
    if is_dataclass(setting) and not isinstance(setting, type):
        options = [(field.name, getattr(setting, field.name)) for field in fields(setting)]
        return [type(setting).__qualname__, *options]
    if isinstance(setting, CostModel | Estimator | Solver):  # no dataclass: its `repr` need not show its options
        return tuple(vars(setting).items())
    return None


# All files of the plug-in's package, or the file of a module that is in no package.
def _source_of(plugin: type) -> bytes:
    module = sys.modules[plugin.__module__]
    if getattr(module, "__file__", None) is None:
        return _source_in_notebook(plugin)
    file = Path(str(module.__file__))
    sources = sorted(file.parent.glob("*.py")) if module.__package__ else [file]
    return b"".join(source.read_bytes() for source in sources)


# A class without a file, as in a notebook, gets a random number that is valid until the process ends.
@cache
def _source_in_notebook(plugin: type) -> bytes:
    del plugin
    return uuid4().bytes
