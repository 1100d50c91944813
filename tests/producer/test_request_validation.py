"""Requests that break a rule of the protocol, as the vendor's validators see it: 0x04, and on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from talk import Talk

from upriver.testing import TemporaryProducer
from upriver.wire.protocol_enums import Feature

INVALID = 0x04
STORE = struct.pack(">II", 0, 0)
XATTR_ONLY = struct.pack(">I", 0)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as producer:
        yield producer


@pytest.fixture
def talk(producer: TemporaryProducer) -> Iterator[Talk]:
    with Talk(producer) as talk:
        talk.hello(Feature.XATTR, Feature.XERROR, Feature.SNAPPY, Feature.JSON)
        yield talk


def refused(talk: Talk, opcode: int, *parts: bytes, **fields: Any) -> None:
    """The request is refused under its own opaque, and the connection goes on."""
    answer = talk.ask_raw(opcode, *parts, opaque=0xCAFE, **fields)
    assert (answer.opcode, answer.status, answer.opaque) == (opcode, INVALID, 0xCAFE)
    assert (answer.extras, answer.key, answer.cas) == (b"", b"", 0)
    assert talk.ask_raw(0x0A).status == 0


@pytest.mark.parametrize("opcode", [0x01, 0x02, 0x03, 0x11, 0x12, 0x13])
def test_extended_attributes_cannot_come_with_a_store(talk: Talk, opcode: int) -> None:
    refused(talk, opcode, b"k", XATTR_ONLY + b"body", STORE, datatype=4)


@pytest.mark.parametrize("opcode", [0x0E, 0x0F, 0x19, 0x1A])
def test_extended_attributes_cannot_be_appended(talk: Talk, opcode: int) -> None:
    refused(talk, opcode, b"k", XATTR_ONLY + b"body", datatype=4)


@pytest.mark.parametrize("version", [3, 0xFF])
def test_metadata_has_two_versions(talk: Talk, version: int) -> None:
    refused(talk, 0xA0, b"k", b"", bytes([version]))


def test_a_random_document_is_of_a_collection_exactly_where_there_are_some(talk: Talk) -> None:
    refused(talk, 0xB6, b"", b"", bytes(4))
    talk.hello(Feature.COLLECTIONS)
    refused(talk, 0xB6)


def test_a_known_map_has_a_revision(talk: Talk) -> None:
    refused(talk, 0xB5, b"", b"", struct.pack(">qq", 1, 0))


@pytest.mark.parametrize(
    ("opcode", "value"),
    [(0xFE, b"\0\2"), (0xB9, b"{}"), (0xBA, b""), (0xBB, b"_default._default"), (0xBC, b"")],
)
def test_what_concerns_a_whole_bucket_names_no_vbucket(
    talk: Talk, opcode: int, value: bytes
) -> None:
    refused(talk, opcode, b"", value, vbucket=1)


@pytest.mark.parametrize(
    ("opcode", "path"),
    [(0xBB, b"#.c"), (0xBB, b"s.#"), (0xBB, b"$s.c"), (0xBB, b""), (0xBC, b"#"), (0xBC, b"a.b.c")],
)
def test_names_of_scopes_and_collections_have_few_characters(
    talk: Talk, opcode: int, path: bytes
) -> None:
    refused(talk, opcode, b"", path)


@pytest.mark.parametrize("path", [b"", b"_default", b"_default.", b".", b"_default.whatever"])
def test_an_empty_name_is_the_default_scope(talk: Talk, path: bytes) -> None:
    answer = talk.ask_raw(0xBC, b"", path)
    assert (answer.status, answer.extras[8:]) == (0, bytes(4))


@pytest.mark.parametrize(
    ("opcode", "value", "extras"),
    [(0xC5, b"a", struct.pack(">HB", 1, 0)), (0xD0, struct.pack(">BBH", 0xC5, 0, 1) + b"a", b"")],
)
def test_a_lookup_may_name_the_version_it_is_about(
    talk: Talk, opcode: int, value: bytes, extras: bytes
) -> None:
    cas = talk.ask_raw(0x01, b"looked-up", b'{"a":1}', STORE).cas
    assert talk.ask_raw(opcode, b"looked-up", value, extras, cas=cas).status == 0
    assert talk.ask_raw(opcode, b"looked-up", value, extras, cas=cas + 1).status == 0x02
