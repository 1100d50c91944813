"""The consumer with servers that know one document's commands and nothing else."""

from __future__ import annotations

from itertools import islice

import pytest
from document_servers import DOCUMENTS, Document001, Document002, OneDocument, Unknown

from upriver.consumer import Consumer
from upriver.consumer.checkpoints.checkpoint import Checkpoint
from upriver.errors import RemoteProtocolError
from upriver.wire import messages as m
from upriver.wire.protocol_enums import DialectName

NAMES: dict[str, DialectName] = {"002": "002", "000": "000", "001": "001", "004": "dcp"}
every = pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.document)


def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    return sorted((change.vbucket, change.seqno) for change in islice(consumer, count))


@every
def test_the_vbuckets_that_answer_are_read(kind: type[OneDocument]) -> None:
    with (
        kind({0: 2, 3: 1}) as server,
        Consumer(server.source, dialect=NAMES[kind.document]) as consumer,
    ):
        assert read(consumer, 3) == [(0, 1), (0, 2), (3, 1)]
        assert len(consumer.position().positions) == 2
        server.write(3, b"new")
        assert read(consumer, 1) == [(3, 2)]


@pytest.mark.parametrize("unknown", ["hangs up", "refuses"])
@pytest.mark.parametrize("kind", DOCUMENTS[:3], ids=lambda kind: kind.document)
def test_the_draft_is_found_out(kind: type[OneDocument], unknown: Unknown) -> None:
    with kind({0: 2, 3: 1}, unknown=unknown) as server, Consumer(server.source) as consumer:
        assert read(consumer, 3) == [(0, 1), (0, 2), (3, 1)]


@every
def test_it_goes_on_where_it_was(kind: type[OneDocument]) -> None:
    with kind({0: 3}) as server:
        with Consumer(server.source, dialect=NAMES[kind.document]) as consumer:
            assert read(consumer, 3) == [(0, 1), (0, 2), (0, 3)]
            stored = consumer.position().to_json()
        server.write(0, b"new")
        start = Checkpoint.from_json(stored)
        with Consumer(server.source, dialect=NAMES[kind.document], start=start) as consumer:
            assert read(consumer, 1) == [(0, 4)]


def test_more_than_a_thousand_vbuckets_are_found() -> None:
    with (
        Document002({0: 1, 1023: 1, 1024: 1}) as server,
        Consumer(server.source, dialect="002") as consumer,
    ):
        assert read(consumer, 3) == [(0, 1), (1023, 1), (1024, 1)]


def test_a_server_that_answers_for_no_vbucket_is_told() -> None:
    with Document001({0: 1}) as server:
        server.logs.clear()
        with (
            pytest.raises(RemoteProtocolError, match="answers for none of the vbuckets 0 to 1023"),
            Consumer(server.source, dialect="001"),
        ):
            pass
        assert not server.asked_for(m.StreamRequest)
