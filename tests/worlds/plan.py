"""The plan of a world: what clients do and what breaks, at which time; all of it from a seed.

A plan is a list of steps, so that a failing world can be shrunk by leaving steps out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from upriver.store import SyncMode
from upriver.wire.protocol_enums import DurabilityLevel

from .client import KINDS
from .network import NetworkSettings

_LEVELS: Final = tuple(DurabilityLevel)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens at a true time, in seconds."""

    at: float
    action: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        words = (a.decode() if isinstance(a, bytes) else getattr(a, "name", a) for a in self.args)
        return f"{self.at:8.3f}  {self.action} {' '.join(map(str, words))}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How large worlds are and what may happen in them."""

    name: str
    nodes: int = 1
    #: Numbers of replicas, one of which a seed picks.
    replicas: tuple[int, ...] = (0,)
    vbuckets: tuple[int, ...] = (1, 2, 3)
    clients: int = 2
    keys: int = 4
    #: Operations and faults, at most.
    operations: int = 40
    faults: int = 8
    seconds: float = 12.0
    #: How much faster or slower than the true time clocks run.
    drift: float = 0.01
    #: What may break, each as often as it is named.
    kinds: tuple[str, ...] = ()
    #: Operations besides those that all scopes have.
    more_operations: tuple[str, ...] = ()
    #: Whether much happens at a few moments: then snapshots have several changes.
    bursts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a seed decides before a world begins."""

    seed: int
    scope: Scope
    vbuckets: int
    sync: SyncMode
    #: Bytes of the reader's flow-control window.
    buffer: int
    network: NetworkSettings
    #: How fast the clocks of processes run, by their names' order of appearance.
    rates: tuple[float, ...]
    steps: tuple[Step, ...]
    replicas: int = 0

    @classmethod
    def of(cls, seed: int, scope: Scope) -> Self:
        chance = random.Random(f"plan {scope.name} {seed}")
        moments: list[float] = []
        if scope.bursts and chance.random() < 0.6:
            moments = [chance.uniform(1.0, scope.seconds) for _ in range(chance.randint(1, 3))]
        steps = [*_operations(chance, scope, moments), *_faults(chance, scope, moments)]
        return cls(
            seed=seed,
            scope=scope,
            vbuckets=chance.choice(scope.vbuckets),
            sync=SyncMode.RELAXED
            if scope.nodes == 1 and chance.random() < 0.25
            else SyncMode.DURABLE,
            buffer=chance.choice((1024, 4096, 1024 * 1024)),
            network=NetworkSettings(
                delay=chance.choice((0.0005, 0.002, 0.02)),
                late=chance.choice((0.0, 0.02, 0.1)),
                torn=chance.choice((0.0, 0.1, 0.4)),
            ),
            rates=tuple(chance.uniform(1 - scope.drift, 1 + scope.drift) for _ in range(8)),
            steps=tuple(sorted(steps, key=lambda step: step.at)),
            replicas=chance.choice(scope.replicas),
        )

    def with_steps(self, steps: Sequence[Step]) -> Plan:
        return replace(self, steps=tuple(steps))


def _when(
    chance: random.Random, scope: Scope, moments: Sequence[float], before: float, after: float
) -> float:
    """Any time before the world is mended, or one close to a moment at which much happens."""
    if moments and chance.random() < 0.7:
        when = max(0.5, chance.choice(moments) + chance.uniform(-before, after))
        return min(when, scope.seconds)
    return chance.uniform(0.5, scope.seconds)


def _operations(chance: random.Random, scope: Scope, moments: Sequence[float]) -> list[Step]:
    count = chance.randint(scope.operations // 3, scope.operations)
    keys = chance.randint(1, scope.keys)
    durable = chance.choice((0.0, 0.3, 0.7))
    steps = []
    for number in range(count):
        level = chance.choice(_LEVELS[1:]) if chance.random() < durable else _LEVELS[0]
        kind = chance.choice((*KINDS, "set", "set", "get", *scope.more_operations))
        # numbers only, so that every value can be counted up
        value = b"%d" % (1000 + number)
        wish = (chance.randrange(scope.clients), kind, b"k%d" % chance.randrange(keys), value)
        at = _when(chance, scope, moments, 0.0, 0.1)
        steps.append(Step(at, "operation", (*wish, level)))
    return steps


def _faults(chance: random.Random, scope: Scope, moments: Sequence[float]) -> list[Step]:
    steps = []
    allowed = [kind for kind in scope.kinds if chance.random() < 0.6]
    for _ in range(chance.randint(0, scope.faults) if allowed else 0):
        kind = chance.choice(allowed)
        at = _when(chance, scope, moments, 0.5, 1.5)
        # which of several, how long, how much: the fault itself knows what to make of them
        args = (chance.randrange(1000), round(chance.uniform(0.05, 4.0), 3), chance.randrange(12))
        steps.append(Step(at, kind, args))
    for _ in range(chance.randint(1, 5)):
        steps.append(Step(_when(chance, scope, moments, 0.0, 1.0), "checkpoint"))
    return steps
