"""What a bucket needs of its machine: a database, threads and a clock. A simulation has its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .rocksdb import Database
from .writes.commit_threads import GroupWriter, Ticker


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The parts that a bucket is put together from; each is called as the class that it names."""

    database: Callable[..., Database] = Database
    writer: Callable[..., GroupWriter] = GroupWriter
    ticker: Callable[..., Ticker] = Ticker
    #: Seconds of a clock that never goes back.
    monotonic: Callable[[], float] = time.monotonic


#: This machine.
MACHINE: Final = Platform()
