"""Computes dataclass fields when they are first read: a graph's signature takes longer than finding a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Deferred(Generic[T]):
    """Holds a value that is computed on first read. A pickle or a deep copy contains the value itself."""

    def __init__(self, value: Callable[[], T]) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[[T], T], tuple[T]]:
        return _same, (self.value(),)


def _same(value: T) -> T:
    return value


class LazyField(Generic[T]):
    """Defines a dataclass field that may be set to a `Deferred`, which is then computed on first read.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Page:
    ...     text: LazyField[str] = LazyField("")
    >>> Page(Deferred(lambda: "written now")).text
    'written now'
    """

    def __init__(self, default: T) -> None:
        self._default = default

    def __repr__(self) -> str:
        return repr(self._default)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, thing: Any, owner: type | None = None) -> T:
        if thing is None:  # a dataclass asks for the default
            return self._default
        content = cast(T | Deferred[T], vars(thing)[self._name])  # read once: another thread may replace it
        if type(content) is not Deferred:
            return cast(T, content)
        vars(thing)[self._name] = value = cast(Deferred[T], content).value()
        return value

    def __set__(self, thing: Any, value: T | Deferred[T] | LazyField[T]) -> None:
        vars(thing)[self._name] = self._default if isinstance(value, LazyField) else value


def is_deferred(thing: object, field: str) -> bool:
    return type(vars(thing)[field]) is Deferred
