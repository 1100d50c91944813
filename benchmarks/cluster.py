"""A cluster of processes on this machine: replication, a takeover under writes, a rebalance.

    python benchmarks/cluster.py [--docs 500000] [--quick]

The clusters are made as `upriver cluster start` makes them. The same writer writes into a node of
its own, into two without replicas and into two with one replica, so the price of the copies is
seen in one run. Everything shares the processors, this program too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from machine import machine_line
from producer import RECEIVE, VALUE, key

from upriver.cluster import cluster_start, cluster_state, control_socket
from upriver.consumer import Consumer
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Address, Source
from upriver.consumer.writing.write_operations import Overwrite
from upriver.consumer.writing.writer import Writer, WriterSettings
from upriver.errors import ConnectionFailed, Status
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.protocol_enums import RequestedState

VBUCKETS = 64
#: Quiet sets between two noops, whose answers tell that all before them were done.
ROUND = 1000
#: Documents of the vbucket that is taken over.
TAKEN = 10_000
#: Seconds between two writes, and between two looks at how far something is.
TICK = 0.001
LOOK = 0.01
#: Written every hundredth of a second while the cluster is rebalanced.
TRICKLE = 10
#: Seconds without which something is wrong.
PATIENCE = 60.0


# ---- clusters ----------------------------------------------------------------------------


class Cluster:
    """A cluster that runs, and where its parts are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lines(self, command: str, node: str = "") -> Iterator[dict[str, object]]:
        return control_socket.call(self._directory, command, node)

    def run(self, command: str, node: str = "") -> None:
        for _ in self.lines(command, node):
            pass

    @property
    def state(self) -> cluster_state.ClusterState:
        return cluster_state.load(self._directory / "cluster.json")

    def source(self) -> Source:
        hosts = tuple(Address("127.0.0.1", node.port) for node in self.state.members)
        return Source(hosts, "default")

    def link(self, name: str) -> BlockingConnection:
        address = Address("127.0.0.1", self.state.node(name).port)
        return BlockingConnection(address, self.source(), Access())

    def links(self) -> list[BlockingConnection]:
        return [self.link(node.name) for node in self.state.members]


@contextmanager
def running(directory: Path, *, nodes: int, replicas: int, vbuckets: int) -> Iterator[Cluster]:
    """A cluster; its processes are gone when the block ends."""
    cluster_start.create(directory, nodes=nodes, replicas=replicas, vbuckets=vbuckets)
    cluster = Cluster(directory)
    try:
        cluster_start.start_manager(directory)
        yield cluster
    finally:
        cluster_start.start_manager(directory)  # only a manager knows the nodes
        pid = json.loads((directory / "manager.json").read_text())["pid"]
        cluster.run("stop")
        with suppress(ChildProcessError):  # it was waited for already
            os.waitpid(pid, 0)


# ---- replication -------------------------------------------------------------------------


def packets(documents: int, vbuckets: int) -> list[tuple[int, bytes]]:
    """Quiet sets of new documents, and the vbucket of each."""
    encode = Dcp().encode
    made = []
    for name in map(key, range(documents)):
        vbucket = vbucket_of(name, vbuckets)
        made.append((vbucket, encode(kv.Set(key=name, vbucket=vbucket, value=VALUE, quiet=True))))
    return made


def write(cluster: Cluster, wanted: Iterable[tuple[int, bytes]]) -> float:
    """Writes at full speed, a connection to each node; seconds until the last was acknowledged."""
    owners = [row[0] for row in cluster.state.rows]
    parts: dict[str, list[bytes]] = {node.name: [] for node in cluster.state.members}
    for vbucket, packet in wanted:
        parts[owners[vbucket] or ""].append(packet)
    noop = Dcp().encode(kv.Noop())
    rounds = {
        name: [b"".join(part[i : i + ROUND]) + noop for i in range(0, len(part), ROUND)]
        for name, part in parts.items()
    }
    with ThreadPoolExecutor(2 * len(rounds)) as threads, ExitStack() as stack:
        links = [stack.enter_context(cluster.link(name)) for name in rounds]
        started = time.perf_counter()
        tasks: list[Future[None]] = []
        for link, chunks in zip(links, rounds.values(), strict=True):
            tasks += [threads.submit(send, link, chunks), threads.submit(hear, link, len(chunks))]
        for task in tasks:
            task.result()
        return time.perf_counter() - started


def send(link: BlockingConnection, chunks: list[bytes]) -> None:
    for chunk in chunks:
        link.socket.sendall(chunk)


def hear(link: BlockingConnection, answers: int) -> None:
    """Returns when as many noops were answered; of the quiet sets only a refused one is."""
    link.socket.settimeout(PATIENCE)
    while answers:
        chunk = link.socket.recv(RECEIVE)
        assert chunk, f"{link.address} hung up"
        for packet in link.framer.feed(chunk):
            answer: Any = link.dialect.decode(packet)
            assert answer.status is Status.SUCCESS, "a write was refused"
            answers -= 1


def total_seqno(links: Iterable[BlockingConnection], wanted: RequestedState) -> int:
    """The newest seqnos of all copies of a state, added up."""
    answers: list[Any] = [link.ask(kv.GetAllSeqnos(state=wanted)) for link in links]
    return sum(seqno for answer in answers for _, seqno in answer.seqnos)


def until_copied(cluster: Cluster) -> tuple[int, float]:
    """How many changes the replicas are behind now, and the seconds until they have them."""
    with ExitStack() as stack:
        links = [stack.enter_context(link) for link in cluster.links()]
        started = time.perf_counter()
        active = total_seqno(links, RequestedState.ACTIVE)
        behind = left = active - total_seqno(links, RequestedState.REPLICA)
        while left:
            assert time.perf_counter() - started < PATIENCE, f"{left} changes are not copied"
            time.sleep(LOOK)
            left = active - total_seqno(links, RequestedState.REPLICA)
        return behind, time.perf_counter() - started


# ---- takeover ----------------------------------------------------------------------------


class Knocking:
    """Writes one document again and again, to the other node as soon as it is refused."""

    def __init__(self, links: list[BlockingConnection]) -> None:
        self.refused = 0.0
        self.slowest = 0.0
        self.over = threading.Event()
        self._links = links

    def run(self) -> None:
        at, since = 0, None
        while not self.over.is_set() or since is not None:
            sent = time.perf_counter()
            accepted = self._ask(self._links[at])
            now = time.perf_counter()
            if not accepted:
                at, since = 1 - at, sent if since is None else since
            else:
                self.slowest = max(self.slowest, now - sent)
                if since is not None:
                    self.refused, since = max(self.refused, now - since), None
            time.sleep(TICK)

    def _ask(self, link: BlockingConnection) -> bool:
        try:
            return link.ask(kv.Set(key=b"knock", value=VALUE)).status is Status.SUCCESS
        except ConnectionFailed:
            return False


def take_over(cluster: Cluster) -> tuple[float, float, float]:
    """Moves the only vbucket to a new node: seconds of the move, refused, and of one write."""
    (old,) = cluster.state.members
    cluster.run("add-node")
    (new,) = (node for node in cluster.state.members if node.name != old.name)
    with (
        cluster.link(old.name) as here,
        cluster.link(new.name) as there,
        ThreadPoolExecutor(1) as threads,
    ):
        writer = Knocking([here, there])
        writing = threads.submit(writer.run)
        told = {}
        try:
            for line in cluster.lines("remove-node", old.name):
                if "done" in line:
                    told[line["done"]] = time.perf_counter()
        finally:
            writer.over.set()
        writing.result()
    return told[1] - told[0], writer.refused, writer.slowest


# ---- rebalance ---------------------------------------------------------------------------


class Trickle:
    """Writes a little all the time, with a writer that follows the map."""

    def __init__(self, source: Source) -> None:
        self.sent: dict[bytes, float] = {}
        self.waited: list[float] = []
        self.over = threading.Event()
        self._writer = Writer(source, settings=WriterSettings(retry_timeout=PATIENCE))

    def run(self) -> None:
        with self._writer as writer:
            while not self.over.wait(LOOK):
                first = len(self.sent)
                names = [b"live%08d" % number for number in range(first, first + TRICKLE)]
                began = time.perf_counter()
                for name in names:
                    writer.put(Overwrite(name, VALUE))
                writer.flush()
                self.waited.append(time.perf_counter() - began)
                self.sent.update(dict.fromkeys(names, began))


class Following:
    """Our consumer, reading everything and then what comes."""

    def __init__(self, source: Source) -> None:
        self.delivered: dict[bytes, float] = {}
        self.rows = 0
        self.consumer = Consumer(source).start()

    def run(self) -> None:
        for batch in self.consumer.batches():
            now = time.perf_counter()
            self.rows += batch.num_rows
            names: list[Any] = batch.column("key").to_pylist()
            for name in names:
                self.delivered.setdefault(name, now)

    def wait_for(self, documents: int) -> None:
        limit = time.perf_counter() + PATIENCE
        while len(self.delivered) < documents:
            assert time.perf_counter() < limit, f"{len(self.delivered)} of {documents} were read"
            time.sleep(LOOK)


def rebalance(cluster: Cluster, documents: int) -> None:
    """Adds a node and spreads the vbuckets, with a consumer and a writer at work."""
    cluster.run("add-node")
    before = cluster.state.rows
    follower, writer = Following(cluster.source()), Trickle(cluster.source())
    with ThreadPoolExecutor(2) as threads:
        following = threads.submit(follower.run)
        try:
            follower.wait_for(documents)
            writing = threads.submit(writer.run)
            started = time.perf_counter()
            cluster.run("rebalance")
            seconds = time.perf_counter() - started
            writer.over.set()
            writing.result()
            ended = time.perf_counter()
            written = documents + len(writer.sent)
            follower.wait_for(written)
        finally:
            writer.over.set()
            follower.consumer.close()
        following.result()
    after = max(0.0, max(follower.delivered.values()) - ended)
    pairs = list(zip(before, cluster.state.rows, strict=True))
    copies = sum(len(set(now) - set(then)) for then, now in pairs)
    actives = sum(now[0] != then[0] for then, now in pairs)
    moved = documents * copies // len(pairs)
    print(f"rebalance of {len(pairs)} vbuckets with {documents:,} documents, 2 to 3 nodes:")
    print(f"  {seconds:.1f} s, {documents / seconds:,.0f} documents/s of the bucket")
    print(f"  {copies} copies made, {moved / seconds:,.0f} documents/s copied; {actives} takeovers")
    pace = len(writer.sent) / seconds
    print(
        f"  a writer of ours beside it: {pace:,.0f}/s, a round of {TRICKLE} {spread(writer.waited)}"
    )
    delays = [follower.delivered[name] - at for name, at in writer.sent.items()]
    print(f"  our consumer, write to delivery: {spread(delays)}")
    print(
        f"  it read {len(follower.delivered):,} of {written:,} documents in {follower.rows:,} rows,"
        f" the last {after:.2f} s after the last write"
    )


def spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, longest {ordered[-1] * 1000:.1f} ms"


# ---- all of it ---------------------------------------------------------------------------


def replication(scratch: Path, documents: int) -> None:
    """The three clusters; the last is rebalanced too."""
    wanted = packets(documents, VBUCKETS)
    first, rest = wanted[:ROUND], wanted[ROUND:]
    print(f"{len(rest):,} quiet sets of {len(VALUE)} B at full speed, durable on the active node:")
    for nodes in (1, 2):
        plain = scratch / f"plain{nodes}"
        with running(plain, nodes=nodes, replicas=0, vbuckets=VBUCKETS) as cluster:
            write(cluster, first)
            seconds = write(cluster, rest)
            print(f"  {nodes} without replicas: {len(rest) / seconds:,.0f}/s acknowledged")
    with running(scratch / "copied", nodes=2, replicas=1, vbuckets=VBUCKETS) as cluster:
        write(cluster, first)
        until_copied(cluster)  # so that copies flow
        seconds = write(cluster, rest)
        behind, more = until_copied(cluster)
        both = len(rest) / (seconds + more)
        print(f"  2 with 1 replica: {len(rest) / seconds:,.0f}/s acknowledged")
        print(f"    at the end {behind:,} were not copied yet; {more:.2f} s later all were")
        print(f"    so {both:,.0f}/s were written and copied; the aim is 50,000")
        rebalance(cluster, documents)


def takeovers(scratch: Path, times: int) -> None:
    with running(scratch / "moved", nodes=1, replicas=0, vbuckets=1) as cluster:
        write(cluster, packets(TAKEN, 1))
        seen = [take_over(cluster) for _ in range(times)]
    moves, refused, slowest = map(list, zip(*seen, strict=True))
    print(f"takeover of a vbucket of {TAKEN:,} documents under writes, {times} times:")
    print(f"  copy and takeover: {spread(moves)}")
    print(f"  writers refused: {spread(refused)}; the aim is p99 below 100 ms")
    print(f"  slowest accepted write of each: {spread(slowest)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=500_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents")
    options = parser.parse_args()
    # the processes of a cluster outlive whoever started them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(machine_line("rocksdict", "numpy", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
        scratch = Path(directory).resolve()
        takeovers(scratch, 4 if options.quick else 20)
        replication(scratch, options.docs // (10 if options.quick else 1))


if __name__ == "__main__":
    main()
