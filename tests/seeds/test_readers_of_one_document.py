"""Both clients with servers that know one document and nothing else, found out or named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumerkit import PATIENCE
from printed_servers import ALONE, Alone
from seedkit import SOON

from upriver.consumer import AsyncConsumer, Change, Consumer
from upriver.model import Op


def blocking(source: str, **options: Any) -> list[Change]:
    with Consumer(source, **options) as consumer:
        return list(consumer)


def on_a_loop(source: str, **options: Any) -> list[Change]:
    async def read() -> list[Change]:
        async with AsyncConsumer(source, **options) as consumer:
            return [change async for change in consumer]

    return asyncio.run(asyncio.wait_for(read(), PATIENCE))


@pytest.mark.parametrize("read", [blocking, on_a_loop], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("how", ["auto", "named"])
@pytest.mark.parametrize("alone", ALONE, ids=[alone.dialect for alone in ALONE])
def test_each_change_is_read_once(alone: Alone, how: str, read: Any) -> None:
    vbucket, seqnos = alone.vbucket, alone.seqnos
    with alone.server() as server:
        changes = read(
            server.source,
            dialect=alone.dialect if how == "named" else how,
            vbuckets=frozenset({vbucket}),
            end={vbucket: seqnos[-1]},
            **SOON,
        )
    assert [(change.vbucket, change.seqno, change.op) for change in changes] == [
        (vbucket, seqnos[0], Op.MUTATION),
        (vbucket, seqnos[1], Op.DELETION),
        (vbucket, seqnos[2], Op.EXPIRATION),
    ]
