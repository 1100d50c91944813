"""Any sequence of requests: compared with a plain model, and never without an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvkit import Desk, open_desk

from upriver.errors import Status
from upriver.model import Datatype
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Command as C

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(tmp_path_factory.mktemp("any")) as desk:
        yield desk


# ---- documents against a model -----------------------------------------------------------

BODIES = st.sampled_from([b"", b"7", b"19", b"text", b'{"a":1}'])
KEYS = st.sampled_from([b"a", b"b"])


@dataclass
class Known:
    """A document as the model knows it."""

    value: bytes
    flags: int
    cas: int


class Model:
    """What a bucket of two documents should do."""

    def __init__(self) -> None:
        self.documents: dict[bytes, Known] = {}

    def expected(self, request: Any) -> tuple[Status, bytes | None]:
        """The status of a request, and what the document is then."""
        known = self.documents.get(request.key)
        if isinstance(request, kv.Increment):
            return self._counted(known, request)
        if isinstance(request, kv.Append):
            if known is None:
                return Status.NOT_STORED, None
            prepends = isinstance(request, kv.Prepend)
            first, second = (
                (request.value, known.value) if prepends else (known.value, request.value)
            )
            return Status.SUCCESS, first + second
        if isinstance(request, kv.Add) and known is not None:
            return Status.EXISTS, None
        if isinstance(request, kv.Replace | kv.Delete) and known is None:
            return Status.NOT_FOUND, None
        return Status.SUCCESS, b"" if isinstance(request, kv.Delete) else request.value

    def _counted(self, known: Known | None, request: kv.Increment) -> tuple[Status, bytes | None]:
        if known is None:
            return Status.SUCCESS, str(request.initial).encode()
        if not known.value.isdigit():
            return Status.BAD_DELTA, None
        down = isinstance(request, kv.Decrement)
        number = int(known.value) + (-request.delta if down else request.delta)
        return Status.SUCCESS, str(max(number, 0)).encode()

    def done(self, request: Any, value: bytes, cas: int) -> None:
        if isinstance(request, kv.Delete):
            del self.documents[request.key]
            return
        known = self.documents.get(request.key)
        if isinstance(request, kv.StoreRequest):
            flags = request.flags
        else:
            flags = known.flags if known else 0
        self.documents[request.key] = Known(value, flags, cas)


def stores(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        kind, key=KEYS, collection=st.just(0), value=BODIES, flags=st.integers(0, 2**32 - 1)
    )


WRITES = st.one_of(
    *map(stores, (kv.Set, kv.Add, kv.Replace)),
    *(
        st.builds(kind, key=KEYS, collection=st.just(0), value=BODIES)
        for kind in (kv.Append, kv.Prepend)
    ),
    *(
        st.builds(
            kind,
            key=KEYS,
            collection=st.just(0),
            delta=st.integers(0, 30),
            initial=st.integers(0, 30),
        )
        for kind in (kv.Increment, kv.Decrement)
    ),
    st.builds(kv.Delete, key=KEYS, collection=st.just(0)),
)


@SHARED
@given(st.lists(WRITES, max_size=12))
def test_documents_behave_as_in_the_model(desk: Desk, requests: list[Any]) -> None:
    for key in (b"a", b"b"):
        desk.document(kv.Delete, key)
    model = Model()
    for request in requests:
        status, value = model.expected(request)
        response = desk.ask(request)
        assert response.status is status
        if status is Status.SUCCESS:
            assert value is not None
            model.done(request, value, response.cas)
        for key in (b"a", b"b"):
            read, known = desk.get(key), model.documents.get(key)
            if known is None:
                assert read.status is Status.NOT_FOUND
            else:
                assert (read.value, read.flags, read.cas) == (known.value, known.flags, known.cas)


# ---- whatever comes is answered ----------------------------------------------------------

PATHS = st.lists(
    st.sampled_from([b"a", b"b", b".", b"[0]", b"[-1]", b"[", b"`a`", b"$document", b"\xff"]),
    max_size=4,
).map(b"".join)
PIECES = st.sampled_from([b"", b"1", b"-2", b"[]", b'{"b":[1]}', b"1,2", b"{", b'"\xff"'])
COMMANDS = st.sampled_from(
    [c for c in C if c.startswith("subdoc") and "multi" not in c] + [C.GET, C.SET, C.ADD, C.DELETE]
)
OPERATIONS = st.builds(
    kv.SubdocPath,
    command=COMMANDS,
    path=PATHS,
    value=PIECES,
    path_flags=st.sampled_from([0, 1, 4, 5, 0x10, 0xFF]),
)
DOCUMENTS = st.sampled_from([b"", b"text", b"1", b"[1]", b'{"a":{"b":[1,{"a":2}]}}'])
FLAGS = st.sampled_from([None, 1, 2, 4, 0x20, 0xFF])


@SHARED
@given(DOCUMENTS, st.lists(OPERATIONS, min_size=1, max_size=4), FLAGS, st.booleans())
def test_any_paths_are_answered(
    desk: Desk, document: bytes, operations: list[kv.SubdocPath], flags: int | None, exists: bool
) -> None:
    desk.set(document)
    if not exists:
        desk.document(kv.Delete)
    lookups = tuple(
        kv.SubdocPath(command=one.command, path=one.path, path_flags=one.path_flags)
        for one in operations
    )
    assert desk.document(kv.SubdocMultiLookup, paths=lookups, doc_flags=flags)
    assert desk.document(kv.SubdocMultiMutation, paths=tuple(operations), doc_flags=flags)
    for one in operations:
        if one.command.startswith("subdoc"):
            assert desk.document(
                kv.SubdocOperation,
                command=one.command,
                path=one.path,
                value=one.value,
                path_flags=one.path_flags,
                doc_flags=flags,
            )
    read = desk.get()
    if read.datatype is Datatype.JSON:
        json.loads(read.value)
