"""Checks that the operations on one key are linearizable: a small search, as by Wing and Gong.

There must be an order of the operations, each at one moment between its request and its answer,
that explains every answer. An operation without an answer may have happened at any later moment,
or never. A `LOSS` (a failover, or a power failure of a bucket that does not sync) may take the key
back to an earlier state, and if it is a durable one, not before a write that was acknowledged as
durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from upriver.errors import Status

LOSS: Final = "loss"
#: The disk of the only copy was replaced by an empty one.
WIPE: Final = "wipe"
#: Somebody emptied the bucket; a loss may take that back.
FLUSH: Final = "flush"

#: A document that was written to expire does so, at any later moment or never.
EXPIRE: Final = "expire"
#: Increments that a value may have had since it was written.
_MOST_INCREMENTS: Final = 50

#: A CAS, or the number of an unanswered operation that chose it.
_Cas = int | tuple[str, int]
#: What is stored: nothing, or a value with its CAS.
_State = tuple[bytes, _Cas] | None
#: The most states of the search for one key; more are taken as explained.
_MOST: Final = 200_000


@dataclass(slots=True)
class Operation:
    """One operation of a client, and what it was told."""

    client: str
    key: bytes
    kind: str
    value: bytes = b""
    #: The CAS that the operation demands; 0 for none.
    cas: int = 0
    #: Whether it was to be acknowledged as durable.
    durable: bool = False
    invoked: int = 0
    #: When the answer came; None without an answer.
    returned: int | None = None
    status: Status | None = None
    result: bytes = b""
    result_cas: int = 0
    #: The port of the node that answered.
    port: int = 0

    def __str__(self) -> str:
        told = "no answer" if self.status is None else self.status.name
        what = f"{self.kind}{' durable' if self.durable else ''} {self.value.decode()}"
        if self.cas:
            what += f" if {self.cas:x}"
        if self.kind in ("get", "increment") and self.status is Status.SUCCESS:
            told = self.result.decode()
        return f"[{self.invoked}..{self.returned or ''}] {self.client} {what}: {told}"


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of the search: what has happened, the state, and the states a loss can restore."""

    done: frozenset[int]
    state: _State
    earlier: tuple[_State, ...]


def explain(operations: Sequence[Operation]) -> bool:
    """Whether an order of the operations on one key explains their answers."""
    ops = sorted(operations, key=lambda op: op.invoked)
    keeps_earlier = any(op.kind == LOSS for op in ops)
    spares_durable = all(op.durable for op in ops if op.kind == LOSS)
    must = frozenset(index for index, op in enumerate(ops) if op.returned is not None)
    start = _Point(frozenset(), None, (None,) if keeps_earlier else ())
    seen, stack = {start}, [start]
    while stack:
        point = stack.pop()
        if must <= point.done:
            return True
        if len(seen) > _MOST:
            return True
        for after in _next_points(ops, must, point, keeps_earlier, spares_durable):
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return False


def _next_points(
    ops: Sequence[Operation],
    must: frozenset[int],
    point: _Point,
    keeps_earlier: bool,
    spares_durable: bool,
) -> Iterator[_Point]:
    #: An operation may be next if no other one that is left was answered before its request.
    first_answer = min(
        (returned for i in must - point.done if (returned := ops[i].returned) is not None),
        default=None,
    )
    for index, op in enumerate(ops):
        if index in point.done or (first_answer is not None and op.invoked > first_answer):
            continue
        if index not in must and op.kind == "get":
            continue
        done = point.done | {index}
        if op.kind == LOSS:
            for state in {point.state, *point.earlier}:
                yield _Point(done, state, point.earlier)
            continue
        if op.kind == WIPE:
            yield _Point(done, None, (None,) if keeps_earlier else ())
            continue
        for state in _outcomes(op, index, point.state) if op.kind != FLUSH else (None,):
            earlier = point.earlier
            if keeps_earlier and state != point.state:
                if spares_durable and op.durable and op.status is Status.SUCCESS:
                    earlier = (state,)
                elif state not in earlier:
                    earlier = (*earlier, state)
            yield _Point(done, state, earlier)


def _outcomes(op: Operation, index: int, state: _State) -> Iterator[_State]:
    """The states after an operation that explain its answer."""
    if op.status is None:
        applied = _applied(op, state, ("?", index))
        if applied is not False:
            yield applied
        return
    if op.status is Status.SUCCESS:
        if op.kind == "get":
            if state is not None and state[0] == op.result and _same(state[1], op.result_cas):
                yield (state[0], op.result_cas)
            return
        applied = _applied(op, state, op.result_cas)
        if applied is False:
            return
        if op.kind == "increment" and (applied is None or applied[0] != op.result):
            return
        yield applied
    elif op.status is Status.NOT_FOUND:
        if state is None:
            yield state
    elif op.status is Status.EXISTS:
        # of an Add: there is a document; with a CAS: there is one with another CAS
        if state is not None and (not op.cas or state[1] != op.cas):
            yield state
    elif op.status is Status.NOT_STORED and (state is None) == (op.kind in ("append", "prepend")):
        yield state


def _applied(op: Operation, state: _State, cas: _Cas) -> _State | Literal[False]:
    """The state after an operation that succeeds, or False if it could not have."""
    if op.cas and (state is None or not _same(state[1], op.cas)):
        return False
    if op.kind == "set":
        return op.value, cas
    if op.kind == "add":
        return (op.value, cas) if state is None else False
    if op.kind == "increment":
        if state is None:
            return op.value, cas
        return (b"%d" % (int(state[0]) + 1), cas) if state[0].isdigit() else False
    if state is None:
        return False
    if op.kind == EXPIRE:
        return None if _stems_from(state[0], op.value) else False
    if op.kind == "replace":
        return op.value, cas
    if op.kind == "delete":
        return None
    if op.kind == "append":
        return state[0] + op.value, cas
    if op.kind == "prepend":
        return op.value + state[0], cas
    if op.kind == "touch":
        return state[0], cas
    raise ValueError(f"there is no operation {op.kind}")


def _stems_from(value: bytes, written: bytes) -> bool:
    """Whether a value may be what operations made of one that was written.

    Numbers of the same length were appended, prepended and counted up.
    """
    size = len(written)
    parts = (value[at : at + size] for at in range(0, len(value), size))
    return any(0 <= int(part) - int(written) < _MOST_INCREMENTS for part in parts)


def _same(held: _Cas, told: int) -> bool:
    return held == told or isinstance(held, tuple)
