"""Parts of documents over the wire: lookups, mutations, attributes, and what is answered."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kvkit import MODERN, Desk, context, open_desk

from upriver.errors import Status
from upriver.model import Datatype
from upriver.producer.keyvalue import Blocking, Now
from upriver.store import SetDocument
from upriver.wire import frameinfo as f
from upriver.wire import kv_messages as kv
from upriver.wire import values
from upriver.wire.crc32c import crc32c
from upriver.wire.enum_codes import STATUSES
from upriver.wire.protocol_enums import Command as C
from upriver.wire.protocol_enums import Feature

OK = Status.SUCCESS
PARENTS, XATTR = 0x01, 0x04
MAKE, ADD, ACCESS_DELETED, AS_DELETED, REVIVE = 0x01, 0x02, 0x04, 0x08, 0x10
MACRO = XATTR | 0x10
BAD_COMBINATION = Status.SUBDOC_INVALID_COMBINATION
DOCUMENT = b'{"name":"Ann","tags":["a","b"],"deep":{"n":1}}'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(tmp_path_factory.mktemp("subdocuments")) as desk:
        yield desk


@pytest.fixture
def desk(shared: Desk) -> Desk:
    """A desk with a document."""
    shared.negotiate(MODERN)
    shared.document(kv.Delete)
    shared.set(DOCUMENT, flags=6)
    return shared


def path(command: C, path: bytes = b"", value: bytes = b"", flags: int = 0) -> kv.SubdocPath:
    return kv.SubdocPath(command=command, path=path, value=value, path_flags=flags)


def one(desk: Desk, command: C, path: bytes = b"", value: bytes = b"", **fields: Any) -> Any:
    return desk.document(kv.SubdocOperation, command=command, path=path, value=value, **fields)


def lookup(desk: Desk, *paths: kv.SubdocPath, **fields: Any) -> Any:
    return desk.document(kv.SubdocMultiLookup, paths=paths, **fields)


def mutate(desk: Desk, *paths: kv.SubdocPath, **fields: Any) -> Any:
    return desk.document(kv.SubdocMultiMutation, paths=paths, **fields)


def results(response: Any) -> list[tuple[Status, bytes]]:
    """What several lookups found."""
    raw, found = response.value, []
    while raw:
        status, length = struct.unpack_from(">HI", raw)
        found.append((STATUSES[status], raw[6 : 6 + length]))
        raw = raw[6 + length :]
    return found


def body(desk: Desk) -> Any:
    return json.loads(desk.get().value)


# ---- looking -----------------------------------------------------------------------------


def test_a_path_is_looked_up(desk: Desk) -> None:
    found = one(desk, C.SUBDOC_GET, b"tags[-1]")
    assert (found.status, found.value, found.cas) == (OK, b'"b"', desk.get().cas)
    assert one(desk, C.SUBDOC_EXISTS, b"deep.n").value == b""
    assert one(desk, C.SUBDOC_GET_COUNT, b"tags").value == b"2"
    assert one(desk, C.SUBDOC_GET_COUNT, b"").value == b"3"


@pytest.mark.parametrize(
    ("command", "where", "status"),
    [
        (C.SUBDOC_GET, b"none", Status.SUBDOC_PATH_NOT_FOUND),
        (C.SUBDOC_EXISTS, b"tags[2]", Status.SUBDOC_PATH_NOT_FOUND),
        (C.SUBDOC_GET, b"name.x", Status.SUBDOC_PATH_MISMATCH),
        (C.SUBDOC_GET, b"a..b", Status.SUBDOC_PATH_INVALID),
        (C.SUBDOC_GET, b"", Status.INVALID),
        (C.SUBDOC_GET_COUNT, b"name", Status.SUBDOC_PATH_MISMATCH),
    ],
)
def test_a_path_that_leads_nowhere(desk: Desk, command: C, where: bytes, status: Status) -> None:
    refused = one(desk, command, where)
    assert refused.status is status
    assert context(refused)


def test_a_document_must_be_there_and_be_json(desk: Desk) -> None:
    assert (
        desk.document(kv.SubdocOperation, b"none", command=C.SUBDOC_GET, path=b"a").status
        is Status.NOT_FOUND
    )
    desk.set(b"plain text")
    assert one(desk, C.SUBDOC_GET, b"a").status is Status.SUBDOC_DOC_NOT_JSON
    assert results(lookup(desk, path(C.GET), path(C.SUBDOC_GET, b"a"))) == [
        (OK, b"plain text"),
        (Status.SUBDOC_DOC_NOT_JSON, b""),
    ]


def test_several_paths_are_looked_up_each_with_its_status(desk: Desk) -> None:
    found = lookup(desk, path(C.SUBDOC_GET, b"name"), path(C.GET))
    assert (found.status, found.cas) == (OK, desk.get().cas)
    assert results(found) == [(OK, b'"Ann"'), (OK, DOCUMENT)]
    found = lookup(desk, path(C.SUBDOC_EXISTS, b"none"), path(C.SUBDOC_GET_COUNT, b"tags"))
    assert found.status is Status.SUBDOC_MULTI_PATH_FAILURE
    assert results(found) == [(Status.SUBDOC_PATH_NOT_FOUND, b""), (OK, b"2")]


def test_compressed_documents_are_looked_into(desk: Desk) -> None:
    desk.set(values.deflate(DOCUMENT), datatype=Datatype.SNAPPY)
    assert one(desk, C.SUBDOC_GET, b"name").value == b'"Ann"'
    one(desk, C.SUBDOC_DICT_UPSERT, b"name", b'"Bob"')
    assert body(desk)["name"] == "Bob"


def test_large_documents_are_searched_elsewhere(desk: Desk) -> None:
    request = kv.SubdocOperation(key=b"k", collection=0, command=C.SUBDOC_GET, path=b"n")
    assert isinstance(desk.answer(request), Now)
    desk.set(json.dumps({"long": "x" * 100_000, "n": 5}).encode())
    assert isinstance(desk.answer(request), Blocking)
    assert desk.ask(request).value == b"5"


@pytest.mark.parametrize(
    ("paths", "status"),
    [
        ([path(C.SUBDOC_GET, b"a")] * 17, Status.SUBDOC_INVALID_COMBINATION),
        ([path(C.SUBDOC_DELETE, b"a")], Status.SUBDOC_INVALID_COMBINATION),
        (
            [path(C.SUBDOC_GET, b"a"), path(C.SUBDOC_GET, b"x", flags=XATTR)],
            Status.SUBDOC_INVALID_XATTR_ORDER,
        ),
    ],
)
def test_paths_that_cannot_stand_together(
    desk: Desk, paths: list[kv.SubdocPath], status: Status
) -> None:
    assert lookup(desk, *paths).status is status


def test_odd_lookups_are_refused_one_by_one(desk: Desk) -> None:
    found = lookup(
        desk,
        path(C.SUBDOC_GET, b"", flags=XATTR),
        path(C.SUBDOC_GET_COUNT, b"", flags=XATTR),
        path(C.GET, b"a"),
        path(C.SUBDOC_GET, b"a", flags=PARENTS),
    )
    assert [status for status, _ in results(found)] == [
        Status.INVALID,
        Status.XATTR_INVALID,
        Status.INVALID,
        Status.SUBDOC_XATTR_INVALID_FLAGS,
    ]
    assert one(desk, C.SUBDOC_GET, b"a", b"value").status is Status.INVALID
    assert one(desk, C.SUBDOC_GET, b"a", doc_flags=MAKE).status is Status.INVALID


# ---- attributes --------------------------------------------------------------------------


def test_attributes_are_written_and_read_by_path(desk: Desk) -> None:
    before = desk.get()
    written = mutate(
        desk,
        path(C.SUBDOC_DICT_UPSERT, b"user.rank", b"5", XATTR | PARENTS),
        path(C.SUBDOC_DICT_ADD, b"age", b"40"),
    )
    assert written.status is OK
    found = lookup(
        desk, path(C.SUBDOC_GET, b"user", flags=XATTR), path(C.SUBDOC_GET, b"age"), path(C.GET)
    )
    assert results(found)[:2] == [(OK, b'{"rank":5}'), (OK, b"40")]
    read = desk.get()
    assert read.value == before.value[:-1] + b',"age":40}'
    assert read.datatype is Datatype.JSON
    one(desk, C.SUBDOC_COUNTER, b"user.rank", b"2", path_flags=XATTR)
    assert one(desk, C.SUBDOC_GET, b"user.rank", path_flags=XATTR).value == b"7"
    one(desk, C.SUBDOC_DELETE, b"user", path_flags=XATTR)
    missing = one(desk, C.SUBDOC_GET, b"user", path_flags=XATTR)
    assert missing.status is Status.SUBDOC_PATH_NOT_FOUND


def test_the_server_tells_of_a_document_in_an_attribute(desk: Desk) -> None:
    time = int(desk.node.seconds) + 1000
    written = desk.set(DOCUMENT, flags=6, expiry=1000)
    about = json.loads(one(desk, C.SUBDOC_GET, b"$document", path_flags=XATTR).value)
    assert about == {
        "CAS": f"0x{written.cas:016x}",
        "vbucket_uuid": f"0x{written.vbuuid:016x}",
        "seqno": f"0x{written.seqno:016x}",
        "revid": str(desk.bucket.meta(0, b"\0k").rev),
        "exptime": time,
        "flags": 6,
        "value_bytes": len(DOCUMENT),
        "value_crc32c": f"0x{crc32c(DOCUMENT):08x}",
        "datatype": ["json"],
        "deleted": False,
        "last_modified": str(int(desk.node.seconds)),
    }
    expiry = one(desk, C.SUBDOC_GET, b"$document.exptime", path_flags=XATTR)
    assert expiry.value == str(time).encode()
    unknown = one(desk, C.SUBDOC_GET, b"$other", path_flags=XATTR)
    assert unknown.status is Status.SUBDOC_XATTR_UNKNOWN_VATTR
    fixed = one(desk, C.SUBDOC_DICT_UPSERT, b"$document.x", b"1", path_flags=XATTR)
    assert fixed.status is Status.SUBDOC_XATTR_CANNOT_MODIFY_VATTR


def test_the_attributes_of_a_tombstone_can_be_read(desk: Desk) -> None:
    one(desk, C.SUBDOC_DICT_UPSERT, b"_sys", b'"s"', path_flags=XATTR)
    one(desk, C.SUBDOC_DICT_UPSERT, b"user", b"1", path_flags=XATTR)
    desk.document(kv.Delete)
    system, user = (path(C.SUBDOC_GET, name, flags=XATTR) for name in (b"_sys", b"user"))
    assert lookup(desk, system).status is Status.NOT_FOUND
    found = lookup(desk, system, doc_flags=ACCESS_DELETED)
    assert found.status is Status.SUBDOC_SUCCESS_DELETED
    assert results(found) == [(OK, b'"s"')]
    found = lookup(desk, system, user, doc_flags=ACCESS_DELETED)
    assert found.status is Status.SUBDOC_MULTI_PATH_FAILURE_DELETED
    deleted = one(
        desk, C.SUBDOC_GET, b"$document.deleted", path_flags=XATTR, doc_flags=ACCESS_DELETED
    )
    assert (deleted.status, deleted.value) == (Status.SUBDOC_SUCCESS_DELETED, b"true")
    refused = one(desk, C.SUBDOC_DICT_ADD, b"a", b"1", doc_flags=ACCESS_DELETED)
    assert refused.status is Status.SUBDOC_DELETED_CANNOT_HAVE_VALUE
    never = desk.document(kv.SubdocMultiLookup, b"never", paths=(system,), doc_flags=ACCESS_DELETED)
    assert never.status is Status.NOT_FOUND


def test_a_replica_can_be_looked_into(desk: Desk) -> None:
    desk.set(DOCUMENT, vbucket=3)
    desk.bucket.set_state(3, desk.bucket.state(3).REPLICA)
    assert one(desk, C.SUBDOC_GET, b"name", vbucket=3).status is Status.NOT_MY_VBUCKET
    assert one(desk, C.SUBDOC_GET, b"name", vbucket=3, doc_flags=0x20).value == b'"Ann"'


def test_attributes_need_to_be_negotiated(desk: Desk) -> None:
    desk.without(Feature.XATTR)
    looked = one(desk, C.SUBDOC_GET, b"user", path_flags=XATTR)
    changed = mutate(desk, path(C.SUBDOC_DICT_UPSERT, b"user", b"1", XATTR))
    assert looked.status is changed.status is Status.NOT_SUPPORTED


@pytest.mark.parametrize("name", [b"[0]", b"", b"``", b"a\0b"])
def test_an_attribute_has_a_name(desk: Desk, name: bytes) -> None:
    refused = one(desk, C.SUBDOC_DICT_UPSERT, name, b"1", path_flags=XATTR)
    assert refused.status is Status.XATTR_INVALID


def test_the_body_can_come_from_an_attribute(desk: Desk) -> None:
    one(desk, C.SUBDOC_DICT_UPSERT, b"next", b'{"v":2}', path_flags=XATTR)
    command = C.SUBDOC_REPLACE_BODY_WITH_XATTR
    done = mutate(
        desk, path(command, b"next", flags=XATTR), path(C.SUBDOC_DELETE, b"next", flags=XATTR)
    )
    assert done.status is OK
    assert body(desk) == {"v": 2}
    assert one(desk, command, b"v").status is Status.INVALID


# ---- changing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "where", "value", "flags", "expected"),
    [
        (C.SUBDOC_DICT_ADD, b"new", b"1", 0, {"new": 1}),
        (C.SUBDOC_DICT_UPSERT, b"name", b"null", 0, {"name": None}),
        (C.SUBDOC_DICT_UPSERT, b"x.y.z", b"[]", PARENTS, {"x": {"y": {"z": []}}}),
        (C.SUBDOC_REPLACE, b"tags", b"0", 0, {"tags": 0}),
        (C.SUBDOC_DELETE, b"deep.n", b"", 0, {"deep": {}}),
        (C.SUBDOC_ARRAY_PUSH_LAST, b"tags", b"1,2", 0, {"tags": ["a", "b", 1, 2]}),
        (C.SUBDOC_ARRAY_PUSH_FIRST, b"tags", b"1", 0, {"tags": [1, "a", "b"]}),
        (C.SUBDOC_ARRAY_PUSH_FIRST, b"list", b"1", PARENTS, {"list": [1]}),
        (C.SUBDOC_ARRAY_INSERT, b"tags[1]", b"1", 0, {"tags": ["a", 1, "b"]}),
        (C.SUBDOC_ARRAY_ADD_UNIQUE, b"tags", b'"c"', 0, {"tags": ["a", "b", "c"]}),
        (C.SUBDOC_COUNTER, b"deep.n", b"-5", 0, {"deep": {"n": -4}}),
    ],
)
def test_a_path_is_changed(
    desk: Desk, command: C, where: bytes, value: bytes, flags: int, expected: dict[str, Any]
) -> None:
    before = desk.get()
    done = one(desk, command, where, value, path_flags=flags)
    assert done.status is OK
    assert done.value == (b"-4" if command is C.SUBDOC_COUNTER else b"")
    after = desk.get()
    assert json.loads(after.value) == {**json.loads(before.value), **expected}
    assert (after.cas, after.flags) == (done.cas, 6)
    seqno = desk.bucket.meta(0, b"\0k").seqno
    assert struct.unpack(">QQ", done.extras) == (
        desk.bucket.failover_log(0).newest.vbuuid,
        seqno,
    )


@pytest.mark.parametrize(
    ("command", "where", "value", "status"),
    [
        (C.SUBDOC_DICT_ADD, b"name", b"1", Status.SUBDOC_PATH_EXISTS),
        (C.SUBDOC_DICT_ADD, b"x.y", b"1", Status.SUBDOC_PATH_NOT_FOUND),
        (C.SUBDOC_DICT_ADD, b"name.y", b"1", Status.SUBDOC_PATH_MISMATCH),
        (C.SUBDOC_DICT_UPSERT, b"new", b"junk", Status.SUBDOC_VALUE_CANNOT_INSERT),
        (C.SUBDOC_REPLACE, b"none", b"1", Status.SUBDOC_PATH_NOT_FOUND),
        (C.SUBDOC_ARRAY_PUSH_LAST, b"name", b"1", Status.SUBDOC_PATH_MISMATCH),
        (C.SUBDOC_ARRAY_ADD_UNIQUE, b"tags", b'"a"', Status.SUBDOC_PATH_EXISTS),
        (C.SUBDOC_COUNTER, b"name", b"1", Status.SUBDOC_PATH_MISMATCH),
        (C.SUBDOC_DELETE, b"", b"", Status.INVALID),
    ],
)
def test_a_change_that_does_not_fit_changes_nothing(
    desk: Desk, command: C, where: bytes, value: bytes, status: Status
) -> None:
    before = desk.get()
    assert one(desk, command, where, value).status is status
    assert desk.get() == before


def test_several_changes_are_made_together_or_not_at_all(desk: Desk) -> None:
    done = mutate(
        desk,
        path(C.SUBDOC_COUNTER, b"deep.n", b"4"),
        path(C.SUBDOC_DICT_ADD, b"x", b"1"),
        path(C.SUBDOC_COUNTER, b"x", b"1"),
    )
    assert done.value == struct.pack(">BHI", 0, 0, 1) + b"5" + struct.pack(">BHI", 2, 0, 1) + b"2"
    assert len(done.extras) == 16
    before = desk.get()
    failed = mutate(
        desk,
        path(C.SUBDOC_DELETE, b"name"),
        path(C.SUBDOC_DICT_ADD, b"x", b"1"),
        path(C.SUBDOC_DELETE, b"never reached"),
    )
    assert failed.status is Status.SUBDOC_MULTI_PATH_FAILURE
    index, status = struct.unpack(">BH", failed.value)
    assert (index, STATUSES[status]) == (1, Status.SUBDOC_PATH_EXISTS)
    assert desk.get() == before


def test_paths_do_not_come_compressed(desk: Desk) -> None:
    refused = one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", datatype=Datatype.SNAPPY)
    assert refused.status is Status.INVALID


def test_tokens_come_only_to_those_who_asked(desk: Desk) -> None:
    desk.without(Feature.MUTATION_SEQNO)
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1").extras == b""


@pytest.mark.parametrize("flag", [MAKE, ADD])
def test_a_document_can_be_made_by_its_paths(desk: Desk, flag: int) -> None:
    desk.document(kv.Delete)
    assert one(desk, C.SUBDOC_DICT_ADD, b"a", b"1").status is Status.NOT_FOUND
    one(desk, C.SUBDOC_DICT_ADD, b"a", b"1", doc_flags=flag)
    assert body(desk) == {"a": 1}
    again = one(desk, C.SUBDOC_DICT_ADD, b"b", b"1", doc_flags=flag)
    assert again.status is (OK if flag == MAKE else Status.EXISTS)
    desk.document(kv.Delete)
    one(desk, C.SUBDOC_ARRAY_PUSH_LAST, b"", b"1,2", doc_flags=flag)
    assert body(desk) == [1, 2]
    desk.document(kv.Delete)
    mutate(desk, path(C.SUBDOC_DICT_ADD, b"x", b"1", XATTR), doc_flags=flag)
    assert body(desk) == {}


@pytest.mark.parametrize("flag", [MAKE, ADD])
def test_who_may_make_a_document_makes_parents_too(desk: Desk, flag: int) -> None:
    """As gocbcore makes the record of a client of transactions: no path says that it may."""
    desk.document(kv.Delete)
    record = (
        path(C.SUBDOC_DICT_ADD, b"records.clients", b"{}", XATTR),
        path(C.SUBDOC_DICT_UPSERT, b"a.b", b"1"),
    )
    assert mutate(desk, *record, doc_flags=flag).status is OK
    assert body(desk) == {"a": {"b": 1}}
    found = lookup(desk, path(C.SUBDOC_GET, b"records", flags=XATTR))
    assert results(found) == [(OK, b'{"clients":{}}')]


def test_parents_are_made_in_a_document_that_is_there(desk: Desk) -> None:
    refused = one(desk, C.SUBDOC_DICT_UPSERT, b"x.y", b"1")
    assert refused.status is Status.SUBDOC_PATH_NOT_FOUND
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"x.y", b"1", doc_flags=MAKE).status is OK
    assert body(desk)["x"] == {"y": 1}


def test_a_whole_document_can_stand_among_the_paths(desk: Desk) -> None:
    attribute = path(C.SUBDOC_DICT_UPSERT, b"x", b"1", XATTR)
    assert mutate(desk, attribute, path(C.SET, value=b"raw bytes")).status is OK
    assert (desk.get().value, desk.get().datatype) == (b"raw bytes", Datatype.RAW)
    assert one(desk, C.SUBDOC_GET, b"x", path_flags=XATTR).value == b"1"
    refused = mutate(desk, path(C.SET, b"a", b"1"))
    assert refused.status is Status.SUBDOC_MULTI_PATH_FAILURE
    assert mutate(desk, path(C.DELETE)).status is OK
    assert desk.get().status is Status.NOT_FOUND
    assert mutate(desk, path(C.DELETE)).status is Status.NOT_FOUND
    mutate(desk, path(C.ADD, value=b"[]"), doc_flags=ADD)
    assert body(desk) == []
    assert mutate(desk, path(C.ADD, value=b"1")).status is Status.SUBDOC_MULTI_PATH_FAILURE


def test_the_expiry_is_given_or_kept(desk: Desk) -> None:
    now = int(desk.node.seconds)
    one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", expiry=100)
    assert desk.document(kv.GetMeta).expiry == now + 100
    one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"2", frames=(f.PreserveTtl(),))
    assert desk.document(kv.GetMeta).expiry == now + 100
    one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"3")
    assert desk.document(kv.GetMeta).expiry == 0


def test_a_change_wants_the_version_it_names(desk: Desk) -> None:
    cas = desk.get().cas
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", cas=cas + 1).status is Status.EXISTS
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", cas=cas).status is OK
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", cas=5, doc_flags=ADD).status is (
        Status.INVALID
    )
    desk.document(kv.Delete)
    missing = one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", cas=cas, doc_flags=MAKE)
    assert missing.status is Status.NOT_FOUND


def test_a_locked_document_is_changed_only_with_its_token(desk: Desk) -> None:
    token = desk.document(kv.GetLocked).cas
    assert one(desk, C.SUBDOC_GET, b"name").cas == 2**64 - 1
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1").status is Status.LOCKED
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"1", cas=token).status is OK
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", b"2").status is OK


class Rival:
    """A bucket in which somebody else always writes first, so many times."""

    def __init__(self, desk: Desk, times: int) -> None:
        self.desk = desk
        self.times = times
        self.write = desk.bucket.write

    def __call__(self, change: Any) -> Any:
        if self.times:
            self.times -= 1
            self.write(SetDocument(0, b"\0k", f'{{"rival":{self.times}}}'.encode(), datatype=1))
        return self.write(change)


def test_another_writer_in_between_is_not_overwritten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = Rival(desk, 3)
    monkeypatch.setattr(desk.bucket, "write", rival)
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"mine", b"1").status is OK
    assert body(desk) == {"rival": 0, "mine": 1}
    rival.times = 1
    cas = desk.get().cas
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"mine", b"1", cas=cas).status is Status.EXISTS
    rival.times = 1000
    given_up = one(desk, C.SUBDOC_DICT_UPSERT, b"mine", b"1")
    assert given_up.status is Status.TEMPORARY_FAILURE


def test_writers_at_the_same_time_all_count(desk: Desk) -> None:
    request = kv.SubdocOperation(
        key=b"k", collection=0, command=C.SUBDOC_COUNTER, path=b"deep.n", value=b"1"
    )
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(desk.ask, request) for _ in range(40)]
    numbers = sorted(int(future.result().value) for future in done)
    assert numbers == list(range(2, 42))


@pytest.mark.parametrize(
    ("paths", "flags", "status"),
    [
        ([path(C.SUBDOC_GET, b"a")], 0, Status.SUBDOC_INVALID_COMBINATION),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1")] * 17, 0, Status.SUBDOC_INVALID_COMBINATION),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1", 0x15)], 0, Status.SUBDOC_MULTI_PATH_FAILURE),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1", 0x10)], 0, Status.SUBDOC_MULTI_PATH_FAILURE),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1")], MAKE | ADD, Status.INVALID),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1", XATTR)], REVIVE, Status.INVALID),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1", XATTR)], MAKE | 0x1C, Status.INVALID),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1")], 0x40, Status.INVALID),
        ([path(C.SUBDOC_DICT_ADD, b"a", b"1"), path(C.DELETE)], 0, BAD_COMBINATION),
        ([path(C.DELETE, b"a")], 0, BAD_COMBINATION),
    ],
)
def test_what_a_mutation_cannot_be(
    desk: Desk, paths: list[kv.SubdocPath], flags: int, status: Status
) -> None:
    assert mutate(desk, *paths, doc_flags=flags).status is status


def test_attributes_that_a_peer_broke_are_named(desk: Desk) -> None:
    broken = values.join_xattrs({"x": b"\xff"}, b"{}")
    desk.bucket.write(SetDocument(0, b"\0k", broken, datatype=int(Datatype.XATTR | Datatype.JSON)))
    assert one(desk, C.SUBDOC_GET, b"a").status is Status.XATTR_INVALID
    assert one(desk, C.SUBDOC_DICT_ADD, b"a", b"1").status is Status.XATTR_INVALID
    odd = values.join_xattrs({"x": b"]"}, b"{}")
    desk.bucket.write(SetDocument(0, b"\0k", odd, datatype=int(Datatype.XATTR | Datatype.JSON)))
    assert one(desk, C.SUBDOC_GET, b"a").status is Status.SUBDOC_PATH_NOT_FOUND
    refused = one(desk, C.SUBDOC_GET, b"a", path_flags=XATTR)
    assert refused.status is Status.SUBDOC_DOC_NOT_JSON


# ---- virtual attributes, macros, tombstones: what transactions are made of -------------------


def test_virtual_attributes_of_the_vbucket_and_of_the_attributes(desk: Desk) -> None:
    for name in (b"_sys", b"user"):
        one(desk, C.SUBDOC_DICT_UPSERT, name, b"1", path_flags=XATTR)
    clock = one(desk, C.SUBDOC_GET, b"$vbucket.HLC", path_flags=XATTR)
    now = str(int(desk.node.seconds))
    assert json.loads(clock.value) == {"now": now, "mode": "real"}
    names = one(desk, C.SUBDOC_GET, b"$XTOC", path_flags=XATTR)
    assert json.loads(names.value) == ["_sys", "user"]
    unknown = one(desk, C.SUBDOC_GET, b"$else", path_flags=XATTR)
    assert unknown.status is Status.SUBDOC_XATTR_UNKNOWN_VATTR


def test_macros_stand_for_what_the_write_comes_to(desk: Desk) -> None:
    before = desk.get().cas
    written = mutate(
        desk,
        path(C.SUBDOC_DICT_UPSERT, b"txn.cas", b'"${Mutation.CAS}"', MACRO | PARENTS),
        path(C.SUBDOC_DICT_UPSERT, b"txn.seqno", b'"${Mutation.seqno}"', MACRO),
        path(C.SUBDOC_DICT_UPSERT, b"txn.crc", b'"${Mutation.value_crc32c}"', MACRO),
        path(C.SUBDOC_DICT_UPSERT, b"txn.old", b'"${$document.CAS}"', MACRO),
        path(C.SUBDOC_DICT_UPSERT, b"txn.all", b'"${$document}"', MACRO),
        path(C.SUBDOC_DICT_UPSERT, b"name", b'"Bob"'),
    )
    assert written.status is OK
    _, seqno = struct.unpack(">QQ", written.extras)
    found = json.loads(one(desk, C.SUBDOC_GET, b"txn", path_flags=XATTR).value)
    # lowest byte first, as Couchbase's clients read it
    assert found["cas"] == f"0x{written.cas.to_bytes(8, 'little').hex()}"
    assert found["seqno"] == f"0x{seqno:016x}"
    assert found["crc"] == f"0x{crc32c(desk.get().value):08x}"
    assert found["old"] == found["all"]["CAS"] == f"0x{before:016x}"


@pytest.mark.parametrize(
    ("value", "flags", "status"),
    [
        (b'"${Mutation.else}"', MACRO, Status.SUBDOC_XATTR_UNKNOWN_MACRO),
        (b"1", MACRO, Status.SUBDOC_XATTR_UNKNOWN_MACRO),
        (b"\xff", MACRO, Status.SUBDOC_XATTR_UNKNOWN_MACRO),
        (b'"${$document.else}"', MACRO, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO),
        (b'"${$documents}"', MACRO, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO),
        (b'"${Mutation.CAS}"', 0x10, Status.SUBDOC_XATTR_INVALID_FLAGS),
        (b"1", 0x24, Status.INVALID),
    ],
)
def test_macros_that_are_none(desk: Desk, value: bytes, flags: int, status: Status) -> None:
    assert one(desk, C.SUBDOC_DICT_UPSERT, b"a", value, path_flags=flags).status is status


def test_a_document_that_begins_as_a_tombstone_and_is_revived(desk: Desk) -> None:
    """How a transaction stages an insert, and commits it."""
    desk.document(kv.Delete)
    staged = path(C.SUBDOC_DICT_UPSERT, b"txn.staged", b'{"a":1}', XATTR | PARENTS)
    flags = ADD | AS_DELETED | ACCESS_DELETED
    created = mutate(desk, staged, doc_flags=MAKE | AS_DELETED | ACCESS_DELETED)
    assert created.status is Status.SUBDOC_SUCCESS_DELETED
    assert desk.get().status is Status.NOT_FOUND
    assert desk.document(kv.GetMeta).deleted
    assert mutate(desk, staged, doc_flags=flags).status is Status.EXISTS
    again = mutate(desk, staged, doc_flags=AS_DELETED | ACCESS_DELETED, cas=created.cas)
    assert again.status is Status.SUBDOC_SUCCESS_DELETED  # as gocbcore stages it anew
    created = again
    stale = mutate(desk, staged, doc_flags=ACCESS_DELETED, cas=created.cas - 1)
    assert stale.status is Status.EXISTS
    revived = mutate(
        desk,
        path(C.SUBDOC_REPLACE_BODY_WITH_XATTR, b"txn.staged", b"", XATTR),
        path(C.SUBDOC_DELETE, b"txn", b"", XATTR),
        doc_flags=ACCESS_DELETED | REVIVE,
        cas=created.cas,
    )
    assert revived.status is OK
    assert body(desk) == {"a": 1}
    assert desk.get().datatype is Datatype.JSON
    assert results(lookup(desk, path(C.SUBDOC_GET, b"$XTOC", b"", XATTR))) == [(OK, b"[]")]
    again = mutate(desk, staged, doc_flags=ACCESS_DELETED | REVIVE)
    assert again.status is Status.SUBDOC_CAN_ONLY_REVIVE_DELETED


def test_a_tombstone_stays_one_while_its_attributes_change(desk: Desk) -> None:
    desk.document(kv.Delete, b"never")
    attribute = path(C.SUBDOC_DICT_UPSERT, b"txn", b"1", XATTR)
    asked = {"paths": (attribute,), "doc_flags": MAKE | AS_DELETED}
    assert desk.document(kv.SubdocMultiMutation, b"never", **asked).status is (
        Status.SUBDOC_SUCCESS_DELETED
    )
    removed = {"paths": (path(C.SUBDOC_DELETE, b"txn", b"", XATTR),), "doc_flags": ACCESS_DELETED}
    assert desk.document(kv.SubdocMultiMutation, b"never", **removed).status is (
        Status.SUBDOC_SUCCESS_DELETED
    )
    assert desk.get(b"never").status is Status.NOT_FOUND
    assert desk.set(b"1", b"never").status is OK


def test_a_document_is_deleted_behind_edits_of_its_attributes(desk: Desk) -> None:
    system = path(C.SUBDOC_DICT_UPSERT, b"_sys", b"1", XATTR)
    user = path(C.SUBDOC_DICT_UPSERT, b"user", b"1", XATTR)
    assert mutate(desk, system, user, path(C.DELETE)).status is OK
    assert desk.get().status is Status.NOT_FOUND
    names = lookup(desk, path(C.SUBDOC_GET, b"$XTOC", b"", XATTR), doc_flags=ACCESS_DELETED)
    assert results(names) == [(OK, b'["_sys"]')]


def test_what_is_created_as_deleted_has_no_body(desk: Desk) -> None:
    desk.document(kv.Delete)
    body = path(C.SUBDOC_DICT_ADD, b"a", b"1")
    refused = mutate(desk, body, doc_flags=MAKE | AS_DELETED)
    assert refused.status is Status.SUBDOC_DELETED_CANNOT_HAVE_VALUE
    for flags, path_flags in ((MAKE | AS_DELETED, 0), (AS_DELETED, XATTR)):
        alone = one(desk, C.SUBDOC_DICT_ADD, b"a", b"1", path_flags=path_flags, doc_flags=flags)
        assert alone.status is Status.INVALID


@pytest.mark.parametrize("flags", [MAKE, ADD])
def test_who_makes_the_document_makes_the_parents_of_its_paths(desk: Desk, flags: int) -> None:
    desk.document(kv.Delete)
    deep = path(C.SUBDOC_DICT_ADD, b"records.clients", b"{}", XATTR)
    assert mutate(desk, deep, path(C.SET, value=b"\0"), doc_flags=flags).status is OK
    records = one(desk, C.SUBDOC_GET, b"records", path_flags=XATTR)
    assert json.loads(records.value) == {"clients": {}}
