"""Nodes that are killed, stopped and cut off while others write: what chaos of a cluster shares.

Seeded. It goes on for some seconds, or for as many as UPRIVER_CHAOS_SECONDS says.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient
from waiting import until

from upriver.errors import ConfigError, Status, UpriverError
from upriver.wire import kv_messages as kv
from upriver.wire.frameinfo import Durability
from upriver.wire.protocol_enums import DurabilityLevel

SECONDS = float(os.environ.get("UPRIVER_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("UPRIVER_CHAOS_SEED", "1"))
#: What a durable write may be answered while nodes are lost. It is in progress where the client
#: asks again on another connection, or another node.
UNDECIDED = {
    Status.SYNC_WRITE_AMBIGUOUS,
    Status.SYNC_WRITE_IN_PROGRESS,
    Status.DURABILITY_IMPOSSIBLE,
}
MAJORITY = Durability(level=DurabilityLevel.MAJORITY, timeout_ms=5000)


class Writer(threading.Thread, ABC):
    """Writes until it is over; what goes wrong is kept for whoever waits for it."""

    def __init__(self, cluster: LocalCluster, number: int, over: threading.Event) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.answered = 0
        self._number = number
        self._client = MapClient(cluster, patience=PATIENCE * 4)
        self._over = over

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self.write(self.answered + 1)
                self.answered += 1
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()

    @abstractmethod
    def write(self, count: int) -> None: ...

    @property
    def done(self) -> int:
        """How much it has reached."""
        return self.answered

    def ask(self, request: Any) -> Status:
        """Asks the node that has the request's vbucket."""
        status: Status = self._client.ask(request.vbucket, request).status
        return status


class DurableWriter(Writer):
    """Writes one document after the other; what is said to be on a majority must be there."""

    def __init__(self, cluster: LocalCluster, number: int, over: threading.Event) -> None:
        super().__init__(cluster, number, over)
        self.promised: dict[bytes, bytes] = {}

    @property
    def done(self) -> int:
        return len(self.promised)

    def write(self, count: int) -> None:
        key, value = b"w%d-%d" % (self._number, count), b"%d" % count
        vbucket = self._client.vbucket(key)
        status = self.ask(
            kv.Set(vbucket=vbucket, key=key, value=value, collection=0, frames=(MAJORITY,))
        )
        if status is Status.SUCCESS:
            self.promised[key] = value
        else:
            assert status in UNDECIDED, status


def _has_gone_on(writer: Writer, before: int) -> bool:
    return writer.done > before or writer.error is not None


@contextlib.contextmanager
def writing(writers: Sequence[Writer], over: threading.Event) -> Iterator[None]:
    """Has them write; at the end every one of them has gone on after the block, and none failed."""
    for writer in writers:
        writer.start()
    try:
        yield
        for writer, before in [(writer, writer.done) for writer in writers]:
            until(partial(_has_gone_on, writer, before))
    finally:
        over.set()
        for writer in writers:
            writer.join(PATIENCE * 5)
    for writer in writers:
        if writer.error is not None:
            raise writer.error


def misfortune(cluster: LocalCluster, chance: random.Random, longest: float = 0.8) -> str:
    """Something bad happens to one of the nodes, or to the manager, and is put right again."""
    node = chance.choice([node.name for node in cluster.state.members])
    pause = chance.uniform(0.05, longest)
    what = chance.choice(["kill", "stop", "manager", "failover", "cut off", "rebalance"])
    match what:
        case "kill":
            cluster.signal(node, signal.SIGKILL)
            time.sleep(pause)
        case "stop":
            cluster.signal(node, signal.SIGSTOP)
            time.sleep(pause)
            cluster.signal(node, signal.SIGCONT)
        case "manager":  # and with it every link between two nodes
            cluster.kill_manager()
            time.sleep(pause)
            cluster.start()
        case "failover":
            with contextlib.suppress(ConfigError):  # it has the only copy of something
                cluster.run("failover", node)
                time.sleep(pause)
                cluster.run("recover", node)
        case "cut off":  # what the node takes now nobody copies, and then it is given up
            cut_off(cluster, node, lambda: time.sleep(pause))
        case _:
            with contextlib.suppress(UpriverError):  # a node was away; it can be begun again
                cluster.run("rebalance")
    return f"{what} {node} {pause:.1f}"


def cut_off(cluster: LocalCluster, node: str, meanwhile: Callable[[], object]) -> None:
    """Has a node take writes that nobody copies, and then gives it up."""
    cluster.kill_manager()
    meanwhile()
    cluster.signal(node, signal.SIGSTOP)
    cluster.start_unready()
    with contextlib.suppress(ConfigError):
        cluster.run("failover", node)
        cluster.run("recover", node)
    cluster.signal(node, signal.SIGCONT)


def heal(cluster: LocalCluster) -> None:
    for node in cluster.state.nodes:
        cluster.signal(node.name, signal.SIGCONT)
    cluster.start()
    for node in cluster.state.nodes:
        if node.failed:
            cluster.run("recover", node.name)
    until(lambda: not cluster.run("status")["without_active"])


def assert_kept(cluster: LocalCluster, writers: Sequence[DurableWriter]) -> None:
    """Everything that was promised is there."""
    with MapClient(cluster) as client:
        for writer in writers:
            assert writer.promised
            for key, value in writer.promised.items():
                assert client.get(key) == value, f"{key!r} is lost"
