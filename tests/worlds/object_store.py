"""A simulated object store: files that are created once, and requests that fail or take their time.

A request fails before it was carried out, or after: then its answer is lost. A client that tries
again by itself is told that a file exists which it has created. Listings come in pages, between
which anything may happen. Pauses before and after each request let a process die at any of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from upriver.files.storage import Storage, StorageFailed, StoredFile

from .scheduler import BEGINNING
from .threads import current

_T = TypeVar("_T")
#: Seconds that a request takes, at most, when nothing is slow.
_LATENCY: Final = 0.01
#: Files of a page of a listing.
_PAGE: Final = 5


class ObjectStore:
    """The files of a store, which all processes of a world see."""

    def __init__(self, chance: random.Random, now: Callable[[], float]) -> None:
        self._chance = chance
        self._now = now
        self.content: dict[str, bytes] = {}
        self._modified: dict[str, float] = {}
        #: The part of requests that fail.
        self.failing = 0.0
        #: How many times longer than usual requests take.
        self.slowness = 1.0
        #: Rises with every change.
        self.changes = 0
        #: Called after a file was written, and before files are deleted.
        self.on_written: Callable[[str], None] = lambda path: None
        self.on_delete: Callable[[str], None] = lambda path: None
        #: Called with what was done and the path, in a process of the world.
        self.trace: Callable[..., None] = lambda *words: None

    def write(self, path: str, data: bytes) -> None:
        self.content[path] = data
        self._modified[path] = self._now()
        self.changes += 1
        self.on_written(path)

    def delete(self, path: str) -> None:
        if path in self.content:
            self.on_delete(path)
            del self.content[path], self._modified[path]
            self.changes += 1

    def stored(self, path: str) -> StoredFile:
        moment = datetime.fromtimestamp(BEGINNING / 1e9 + self._modified[path], UTC)
        return StoredFile(path, len(self.content[path]), moment)

    def carry_out(self, what: str, path: str, do: Callable[[], _T], again: _T | None = None) -> _T:
        """Carries out a request of a process of the world, unless it fails.

        ``again`` is the answer if the request was carried out before.
        """
        thread = current()
        if thread is None:
            return do()
        chance = self._chance
        thread.sleep(chance.uniform(0.0005, _LATENCY) * self.slowness)
        fails = chance.random() < self.failing
        if fails and chance.random() < 0.5:
            self.trace("refused", what, path)
            raise StorageFailed(f"{path}: the store answers 503")
        done = do()
        thread.sleep(chance.uniform(0.0005, _LATENCY))
        if fails:
            self.trace("lost answer", what, path)
            if again is not None and chance.random() < 0.5:
                return again
            raise StorageFailed(f"{path}: the answer of the store was lost")
        return done


@dataclass(frozen=True)
class SimulatedStorage(Storage):
    """A prefix of a simulated object store."""

    store: ObjectStore = field(kw_only=True)
    prefix: str = ""

    def under(self, name: str) -> Storage:
        return replace(self, url=f"{self.url}/{name}", prefix=f"{self.prefix}{name}/")

    def _put_new(self, path: str, data: bytes) -> bool:
        place = self.prefix + path

        def do() -> bool:
            if place in self.store.content:
                return False
            self.store.write(place, data)
            return True

        return self.store.carry_out("create", place, do, again=False)

    def put(self, path: str, data: bytes | Path) -> None:
        place = self.prefix + path
        content = data.read_bytes() if isinstance(data, Path) else data
        self.store.carry_out("put", place, lambda: self.store.write(place, content))

    def read(self, path: str) -> bytes:
        place = self.prefix + path
        found = self.store.carry_out("read", place, lambda: self.store.content.get(place))
        if found is None:
            raise FileNotFoundError(f"{self.url}/{path}")
        return found

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def exists(self, path: str) -> bool:
        place = self.prefix + path
        return self.store.carry_out("look", place, lambda: place in self.store.content)

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        folder = f"{self.prefix}{prefix.rstrip('/')}/" if prefix else self.prefix
        last = ""

        def page() -> list[str]:
            names = sorted(n for n in self.store.content if n.startswith(folder) and n > last)
            return names if current() is None else names[:_PAGE]

        while found := self.store.carry_out("list", folder, page):
            last = found[-1]
            stored = [self.store.stored(n) for n in found if n in self.store.content]
            for file in stored:
                yield replace(file, path=file.path.removeprefix(self.prefix))

    def names(self, prefix: str = "") -> list[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        rest = (file.path.removeprefix(folder) for file in self.files(prefix))
        return sorted({one.partition("/")[0] for one in rest if "/" in one})

    def delete(self, paths: Iterable[str]) -> int:
        wanted = sorted(paths)
        for path in wanted:
            place = self.prefix + path
            self.store.carry_out("delete", place, partial(self.store.delete, place))
        return len(wanted)

    @property
    def _store(self) -> Any:
        raise NotImplementedError("a simulated store is not one of obstore")
