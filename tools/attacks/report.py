"""What an attack did to others: latencies of another client's gets, memory, and a verdict."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["HEADER", "Failed", "Row"]

#: Milliseconds. Above the first another client notices the attack; above the second it is held up.
SLOW, HELD_UP = 50.0, 1000.0
#: How many times the 99th percentile without an attack it must be as well, because other programs
#: may keep the machine busy.
NOTICED, HELD = 2, 10
#: Whether the machine has more to do than it can, before anything is attacked.
BUSY = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)

HEADER = (
    f"{'attack':36} {'idle p99':>8} {'get p50':>8} {'p99':>8} {'max':>8}  "
    f"{'MiB before':>10} {'most':>6} {'after':>6}  verdict, and what the attack did"
)


class Failed(Exception):
    """The attack did what no attack may do."""


@dataclass(kw_only=True)
class Row:
    """One line of the table. Latencies are in milliseconds, memory in MiB; None: not measured."""

    attack: str
    did: str = ""
    #: Without the attack, and with it.
    idle: list[float] | None = None
    gets: list[float] | None = None
    before: float | None = None
    most: float | None = None
    after: float | None = None
    failure: str = ""

    @property
    def verdict(self) -> str:
        p99, usual = quantile(self.gets, 0.99) or 0.0, quantile(self.idle, 0.99) or 0.0
        if self.failure:
            return f"FAILED: {self.failure}"
        if p99 > max(HELD_UP, HELD * usual) and not BUSY:
            return f"FAILED: gets wait for more than {HELD_UP:.0f} ms"
        return "slow" if p99 > max(SLOW, NOTICED * usual) else "ok"

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAILED")

    def __str__(self) -> str:
        measured = [(self.idle, 0.99), *((self.gets, part) for part in (0.5, 0.99, 1.0))]
        latencies = " ".join(_figure(quantile(*one), 8, 1) for one in measured)
        memory = " ".join(
            _figure(value, width, 0)
            for value, width in ((self.before, 10), (self.most, 6), (self.after, 6))
        )
        return f"{self.attack:36} {latencies}  {memory}  {self.verdict}; {self.did}"


def quantile(delays: list[float] | None, part: float) -> float | None:
    return sorted(delays)[int((len(delays) - 1) * part)] if delays else None


def _figure(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"
