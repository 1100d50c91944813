"""Every command that writes says when a server has no space or memory, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peer import Peer, Said, cluster
from running import finished

from upriver.cli.load import load_run
from upriver.consumer.writing.documents import Documents
from upriver.errors import Status
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.messages import PlainResponse, Request

COMMANDS = {
    "load": ["load", "SOURCE", "--docs", "5"],
    "set": ["set", "SOURCE", "k", "{}"],
    "delete": ["delete", "SOURCE", "k"],
    "touch": ["touch", "SOURCE", "k", "60"],
}
#: What is to be done, by the status and what the server says with it.
REMEDIES = {
    (Status.NO_MEMORY, b""): "out of memory: give the bucket more, or delete documents",
    (Status.TEMPORARY_FAILURE, b""): "memory or disk is full: look at both, then try again",
    (Status.BUSY, b""): "cannot keep up: try again more slowly",
    (Status.TOO_BIG, b""): "larger than the bucket allows: shorten it",
    (Status.BUCKET_SIZE_LIMIT_EXCEEDED, b""): "no space left for the bucket: raise its size limit",
    (Status.BUCKET_RESIDENT_RATIO_TOO_LOW, b""): "give the bucket more memory",
    (Status.BUCKET_DATA_SIZE_TOO_BIG, b""): "add a node, or delete documents",
    (Status.BUCKET_DISK_SPACE_TOO_LOW, b""): "too little disk space left: free some",
    (Status.BUCKET_DISK_SPACE_TOO_LOW, b'{"error":{"context":"5% left"}}'): "5% left; the server",
    (Status.ROLLBACK, b"No space left"): "No space left; the server has no space left: free disk",
    (Status.ROLLBACK, b""): "see what the server's log says",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("status", "said"), REMEDIES, ids=lambda part: part.name if isinstance(part, Status) else "says"
)
def test_lack_of_space_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, command: str, status: Status, said: bytes
) -> None:
    def answer(request: Request) -> Said:
        if isinstance(request, kv.Set | kv.Delete | kv.Touch):
            refused = Dcp().command_of(request)
            return PlainResponse(command=refused, opaque=request.opaque, status=status, value=said)
        return None

    # what may pass is not waited for
    monkeypatch.setattr(load_run, "SETTINGS", replace(load_run.SETTINGS, retry_timeout=0))
    assert Documents.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Documents.__init__.__kwdefaults__, "patience", 0)
    with Peer(answer) as peer:
        peer.map = cluster([peer], peer, [0])
        words = [word.replace("SOURCE", str(peer.source)) for word in COMMANDS[command]]
        done = finished(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"was refused with {status.name}: " in line
    assert REMEDIES[status, said] in line
