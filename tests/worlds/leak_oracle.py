"""The oracle of memory: every container that a part of the system keeps stays small.

It follows the attributes of the project's own objects from a root, without knowing their names, so
that a new queue or cache is watched as well. What a world does is small: a container with more
entries than everything that happened in it could leave behind at once has a leak.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .committed_branches import Violation

_CONTAINERS: Final = (dict, list, set, deque, tuple, frozenset)
_BYTES: Final = (bytes, bytearray, memoryview)
#: The most entries of a container that changes. Polls of a manager and requests are more in every
#: world.
_MOST_ENTRIES: Final = 24
#: Containers with a limit of their own.
_LIMITS: Final = {"_boundaries": 60}
#: The most entries of one that does not change, and bytes of a buffer.
_MOST_CONSTANT: Final = 64
_MOST_BYTES: Final = 4 * 1024 * 1024
#: Modules whose objects hold what was stored, what is constant, or what the world itself keeps.
_STORED: Final = ("upriver.testing.", "upriver.store.rocksdb", "upriver.wire.", "upriver.errors")


def check_bounded(part: str, roots: Sequence[object]) -> None:
    """Raises a `Violation` if something that a part keeps has become large."""
    for size, path, most in largest(roots):
        if size > most:
            raise Violation(
                "memory stays bounded",
                f"{part}: {path} has {size} entries or bytes, and at most {most} are allowed",
            )


def largest(roots: Sequence[object]) -> Iterator[tuple[int, str, int]]:
    """The size of every container and buffer, where it is, and what it may have at most."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    yield len(waiting), "tasks and roots", 2 * _MOST_ENTRIES
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _BYTES):
            yield len(thing), path, _MOST_BYTES
        elif isinstance(thing, _CONTAINERS):
            is_constant = isinstance(thing, tuple | frozenset)
            most = _MOST_CONSTANT if is_constant else _MOST_ENTRIES
            yield len(thing), path, _LIMITS.get(path.rsplit(".", 1)[-1], most)
            values = [*thing, *thing.values()] if isinstance(thing, dict) else list(thing)
            waiting += [(f"{path}[]", value) for value in values]
        elif isinstance(thing, asyncio.Queue):
            yield thing.qsize(), path, _MOST_ENTRIES
        elif isinstance(thing, asyncio.Task):
            waiting += _locals(thing)
        else:
            waiting += [(f"{path}.{name}", value) for name, value in _attributes(thing)]


def _locals(task: asyncio.Task[Any]) -> Iterator[tuple[str, Any]]:
    """The local variables of a task, through all coroutines that it waits in."""
    at: Any = task.get_coro()
    while (frame := getattr(at, "cr_frame", None)) is not None:
        for name, value in frame.f_locals.items():
            yield f"{at.__qualname__} {name}", value
        at = at.cr_await


def _is_ours(module: str) -> bool:
    return module.startswith("upriver.") and not module.startswith(_STORED)


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object of this project; none of any other, nor of a module or class."""
    kind = type(thing)
    if not any(_is_ours(base.__module__) for base in kind.__mro__):
        return
    yield from getattr(thing, "__dict__", {}).items()
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name) and not name.startswith("__"):
                yield name, getattr(thing, name)
