"""The checker of single-key histories: it accepts what an order explains, and nothing else."""

from __future__ import annotations

import pytest

from upriver.errors import Status
from worlds import LOSS, WIPE, Operation, explain
from worlds.linearizability import EXPIRE

OK = Status.SUCCESS


def op(
    kind: str,
    when: tuple[int, int | None],
    value: str = "",
    status: Status | None = OK,
    **more: object,
) -> Operation:
    made = Operation("c", b"k", kind, value.encode(), invoked=when[0], returned=when[1])
    made.status = status if when[1] is not None else None
    for name, known in more.items():
        setattr(made, name, known.encode() if isinstance(known, str) else known)
    return made


def get(when: tuple[int, int], value: str, cas: int) -> Operation:
    return op("get", when, result=value, result_cas=cas)


GOOD = {
    "one after the other": [op("set", (1, 2), "a", result_cas=7), get((3, 4), "a", 7)],
    "at the same time, either order": [
        op("set", (1, 9), "a", result_cas=7),
        op("set", (1, 9), "b", result_cas=8),
        get((10, 11), "a", 7),
    ],
    "without an answer, it happened": [op("set", (1, None), "a"), get((3, 4), "a", 7)],
    "without an answer, it happened later": [
        op("set", (1, None), "a"),
        op("get", (2, 3), status=Status.NOT_FOUND),
        get((4, 5), "a", 7),
    ],
    "add of what is there": [
        op("set", (1, 2), "a", result_cas=7),
        op("add", (3, 4), "b", Status.EXISTS),
    ],
    "a loss takes it back": [
        op("set", (1, 2), "a", result_cas=7),
        op("set", (3, 4), "b", result_cas=8),
        op(LOSS, (5, 6), durable=True),
        get((7, 8), "a", 7),
    ],
    "counted up": [
        op("set", (1, 2), "4", result_cas=7),
        op("increment", (3, 4), "9", result="5", result_cas=8),
    ],
    "wiped": [
        op("set", (1, 2), "a", result_cas=7),
        op(WIPE, (3, 4)),
        op("get", (5, 6), status=Status.NOT_FOUND),
    ],
}

BAD = {
    "a lost write": [
        op("set", (1, 2), "a", result_cas=7),
        op("get", (3, 4), status=Status.NOT_FOUND),
    ],
    "a stale read": [
        op("set", (1, 2), "a", result_cas=7),
        op("set", (3, 4), "b", result_cas=8),
        get((5, 6), "a", 7),
    ],
    "another CAS": [op("set", (1, 2), "a", result_cas=7), get((3, 4), "a", 8)],
    "a CAS that is over": [
        op("set", (1, 2), "a", result_cas=7),
        op("set", (3, 4), "b", result_cas=8),
        op("set", (5, 6), "c", cas=7, result_cas=9),
    ],
    "counted up twice": [
        op("set", (1, 2), "4", result_cas=7),
        op("increment", (3, 4), "9", result="6", result_cas=8),
    ],
    "a durable write is lost": [
        op("set", (1, 2), "a", result_cas=7),
        op("set", (3, 4), "b", durable=True, result_cas=8),
        op(LOSS, (5, 6), durable=True),
        get((7, 8), "a", 7),
    ],
    "gone, seen, gone": [
        op("set", (1, None), "a"),
        get((2, 3), "a", 7),
        op("get", (4, 5), status=Status.NOT_FOUND),
    ],
    "refused without a reason": [op("add", (1, 2), "a", Status.EXISTS)],
}


@pytest.mark.parametrize("name", GOOD)
def test_an_order_explains_it(name: str) -> None:
    assert explain(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_no_order_explains_it(name: str) -> None:
    assert not explain(BAD[name])


def test_a_document_that_was_to_expire_may_be_gone_later() -> None:
    """But not one that replaced it, nor before it was written."""

    def history(*, replaced: bool) -> list[Operation]:
        ops = [
            Operation("a", b"k", "set", b"1001", invoked=1, returned=2, status=Status.SUCCESS),
            Operation("a", b"k", EXPIRE, b"1001", invoked=1),
            Operation("a", b"k", "append", b"1002", invoked=3, returned=4, status=Status.SUCCESS),
        ]
        if replaced:
            ops.append(
                Operation("a", b"k", "set", b"2000", invoked=5, returned=6, status=Status.SUCCESS)
            )
        gone = Operation("b", b"k", "get", invoked=7, returned=8, status=Status.NOT_FOUND)
        return [*ops, gone]

    assert explain(history(replaced=False))
    assert not explain(history(replaced=True))
