"""A task that waits for a server in vain ends with an error that names the server."""

from __future__ import annotations

from typing import Any

import pytest
from old_servers import Release705

from upriver.batches.offset_ranges import ReadStep
from upriver.batches.options import ReadOptions
from upriver.batches.task_reader import read_steps
from upriver.consumer.transport.connection_string import Address
from upriver.errors import ConnectionFailed
from upriver.model import StreamEndReason, StreamOffset

#: The branch of the scripted servers.
BRANCH = 7
#: Changes that a server has, and that a step wants: more than will ever come.
THERE, WANTED = 3, 5


class EndsAgain(Release705):
    """Accepts every stream, and ends it before its end."""

    def stream(self, talk: Any, request: Any) -> None:
        super().stream(talk, request)
        self.end(request.vbucket, StreamEndReason.TOO_SLOW)


@pytest.mark.parametrize("kind", [Release705, EndsAgain])
def test_a_task_does_not_wait_for_ever_for_what_does_not_come(kind: type[Release705]) -> None:
    with kind({0: THERE}) as server:
        given = {"path": server.source, "requestTimeout": "1s", "retryTimeout": "1s"}
        step = ReadStep(vbucket=0, branch=0, offset=StreamOffset.at(BRANCH, 0), end=WANTED)
        with pytest.raises(ConnectionFailed, match="vbucket 0 after seqno 3 for 2 s") as caught:
            list(read_steps(ReadOptions.parse(given), [step]))
        assert str(Address("127.0.0.1", server.port)) in str(caught.value)
