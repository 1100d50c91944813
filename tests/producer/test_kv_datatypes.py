"""What a client sees of a value depends on what it negotiated; what is stored does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvkit import MODERN, Desk, open_desk

from upriver.errors import Status
from upriver.model import Datatype
from upriver.wire import kv_messages as kv
from upriver.wire import values
from upriver.wire.json_check import is_json
from upriver.wire.protocol_enums import Feature

BODY = b'{"a":[1,2,3],"b":"' + b"x" * 200 + b'"}'
XATTRS = {"user": b'{"n":1}', "_sync": b'"rev"'}
RAW, JSON, SNAPPY, XATTR = Datatype.RAW, Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(tmp_path_factory.mktemp("datatypes")) as desk:
        yield desk


@pytest.fixture
def desk(shared: Desk) -> Desk:
    """A desk of which the document is not there yet."""
    shared.negotiate(MODERN)
    shared.document(kv.Delete)
    return shared


def stored(desk: Desk) -> Datatype:
    return Datatype(desk.bucket.meta(0, b"\0k").datatype)


@pytest.mark.parametrize(
    ("body", "datatype"),
    [
        (b'{"a":1}', JSON),
        (b" [1, 2]\n", JSON),
        (b"12", JSON),
        (b"-0.5e3", JSON),
        (b'"text"', JSON),
        (b"true", JSON),
        (b"null", JSON),
        (b"", RAW),
        (b"text", RAW),
        (b"nonsense", RAW),
        (b"12 apples", RAW),
        (b'{"a":1', RAW),
        (b"{'a':1}", RAW),
        (b"NaN", RAW),
        (b"-Infinity", RAW),
        (b'["\xff"]', RAW),
        (b'["\n"]', RAW),
        (b"[" * 100_000, RAW),
        (b"[" * 100_000 + b"]" * 100_000, RAW),
    ],
)
@pytest.mark.parametrize("said", [RAW, JSON])
def test_json_is_found_out_whatever_the_client_says(
    desk: Desk, body: bytes, datatype: Datatype, said: Datatype
) -> None:
    desk.set(body, datatype=said)
    assert stored(desk) is datatype
    assert desk.get().datatype is datatype


@pytest.mark.parametrize("said", [RAW, JSON])
def test_of_a_very_large_document_the_client_is_believed(desk: Desk, said: Datatype) -> None:
    desk.set(b'"' + b"x" * 300_000 + b'"', datatype=said)
    assert stored(desk) is said


@given(st.binary(max_size=20) | st.text(max_size=20).map(str.encode))
def test_telling_json_never_fails(body: bytes) -> None:
    assert is_json(body) in (True, False)


@pytest.mark.parametrize("xattrs", [{}, XATTRS])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("xattr", [False, True])
def test_a_plain_get_shows_the_body_as_far_as_negotiated(
    desk: Desk, xattrs: dict[str, bytes], packed: bool, snappy: bool, json: bool, xattr: bool
) -> None:
    value, datatype = BODY, RAW
    if xattrs:
        value, datatype = values.join_xattrs(xattrs, value), XATTR
    if packed:
        value, datatype = values.deflate(value), datatype | SNAPPY
    desk.document(kv.SetWithMeta, value=value, datatype=datatype, rev=1, new_cas=1, options=0x01)
    assert stored(desk) == datatype | JSON
    offered = {Feature.SNAPPY: snappy, Feature.JSON: json, Feature.XATTR: xattr}
    desk.negotiate(MODERN - {feature for feature, there in offered.items() if not there})
    read = desk.get()
    assert not read.datatype & XATTR
    assert bool(read.datatype & JSON) is json
    body = values.inflate(read.value) if read.datatype & SNAPPY else read.value
    assert body == BODY
    assert snappy or not read.datatype & SNAPPY


@pytest.mark.parametrize(
    ("value", "datatype", "status"),
    [
        (b"\xff\xff no Snappy", SNAPPY, Status.INVALID),
        (values.deflate(b"\0" * (20 * 1024 * 1024 + 1)), SNAPPY, Status.TOO_BIG),
        (values.deflate(b"\0" * (22 * 1024 * 1024)), SNAPPY, Status.INVALID),
    ],
)
@pytest.mark.parametrize("kind", [kv.Set, kv.Add, kv.Replace])
def test_a_value_must_be_what_its_datatype_says(
    desk: Desk, kind: type, value: bytes, datatype: Datatype, status: Status
) -> None:
    if kind is kv.Replace:
        desk.set()
    assert desk.document(kind, value=value, datatype=datatype).status is status


@pytest.mark.parametrize("value", [b"\0\0\0\x09short", values.join_xattrs({"a": b"no JSON"}, b"")])
def test_attributes_from_elsewhere_must_be_attributes(desk: Desk, value: bytes) -> None:
    refused = desk.document(kv.SetWithMeta, rev=1, new_cas=1, value=value, datatype=XATTR)
    assert refused.status is Status.XATTR_INVALID


@pytest.mark.parametrize(
    ("feature", "value", "datatype"),
    [
        (Feature.JSON, b"{}", JSON),
        (Feature.SNAPPY, values.deflate(b"x"), SNAPPY),
        (Feature.XATTR, values.join_xattrs(XATTRS, b"x"), XATTR),
    ],
)
def test_what_was_not_negotiated_cannot_be_sent(
    desk: Desk, feature: Feature, value: bytes, datatype: Datatype
) -> None:
    desk.without(feature)
    refused = desk.document(kv.SetWithMeta, rev=1, new_cas=1, value=value, datatype=datatype)
    assert refused.status is Status.INVALID
    if datatype is not XATTR:  # which a set has never carried
        assert desk.document(kv.Set, value=value, datatype=datatype).status is Status.INVALID


def test_a_broken_deletion_from_elsewhere_is_refused(desk: Desk) -> None:
    refused = desk.document(
        kv.DeleteWithMeta, rev=1, new_cas=1, value=b"\0\0\0\x09", datatype=XATTR
    )
    assert refused.status is Status.XATTR_INVALID


def test_error_texts_are_json_only_to_those_who_know_it(desk: Desk) -> None:
    assert desk.get().datatype is JSON
    desk.without(Feature.JSON)
    assert desk.get().datatype is RAW
