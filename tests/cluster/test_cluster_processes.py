"""Clusters of real processes: made, stopped, rebalanced, failed over, and followed by clients."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient, assert_copies_equal, is_open
from serverkit import SECRET, users_file
from talk import Talk
from waiting import until

from upriver.cluster.control_socket import call
from upriver.consumer import Access, Consumer
from upriver.consumer.changes import changes_of
from upriver.errors import ConfigError, ConnectionFailed, Status
from upriver.model import Op
from upriver.producer.bootstrap.users import Role
from upriver.session.consumer_events import RolledBack, Rows
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature

VBUCKETS = 16


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of one's own."""
    with LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One for tests that leave it whole."""
    directory = tmp_path_factory.mktemp("shared") / "c"
    with LocalCluster(directory, nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster:
        yield cluster


class Writer:
    """Writes numbered documents in a thread, and remembers what was acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.documents: dict[bytes, bytes] = {}
        self.error: BaseException | None = None
        self._client = MapClient(cluster)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        until(lambda: len(self.documents) > 20)
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE * 2)
        self._client.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        number = 0
        try:
            while not self._over.is_set():
                key = b"doc-%d" % (number % 300)
                self._client.set(key, b"%d" % number)
                self.documents[key] = b"%d" % number
                number += 1
        except BaseException as error:
            self.error = error


class Reader:
    """Follows a cluster with a `Consumer` that is never restarted, and folds what it is told."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.rollbacks = 0
        #: What every vbucket's changes were, by seqno: what is rolled back is taken out again.
        self._told: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}
        self._consumer = Consumer(cluster.source, retry_most=0.5)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> Reader:
        self._consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        self._consumer.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                event = self._consumer.poll(0.1)
                if isinstance(event, Rows):
                    for change in changes_of(event.batch):
                        value = change.value if change.op is Op.MUTATION else None
                        told = self._told.setdefault(change.vbucket, {})
                        told[change.seqno] = (change.key, value)
                elif isinstance(event, RolledBack):
                    self.rollbacks += 1
                    told = self._told.setdefault(event.vbucket, {})
                    for seqno in [s for s in told if s > event.to.seqno]:
                        del told[seqno]
        except BaseException as error:
            self.error = error

    def documents(self) -> dict[bytes, bytes]:
        folded: dict[bytes, bytes | None] = {}
        for told in list(self._told.values()):
            for _, (key, value) in sorted(told.copy().items()):
                folded[key] = value
        return {key: value for key, value in folded.items() if value is not None}


def read_back(cluster: LocalCluster, documents: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    with MapClient(cluster) as client:
        return {key: client.get(key) for key in documents}


def test_a_cluster_keeps_its_documents_through_a_stop(shared: LocalCluster) -> None:
    with Writer(shared) as writer:
        until(lambda: len(writer.documents) > 50)
    told = shared.run("status")
    assert {node["state"] for node in told["nodes"]} == {"up"}
    assert sum(node["active"] for node in told["nodes"]) == VBUCKETS
    assert sum(node["replica"] for node in told["nodes"]) == VBUCKETS
    ports = [node.port for node in shared.state.nodes]
    shared.run("stop")
    assert not any(map(is_open, ports))
    with pytest.raises(ConnectionFailed, match="upriver cluster start"):
        shared.run("status")
    shared.start()
    assert read_back(shared, writer.documents) == writer.documents
    assert_copies_equal(shared)


def test_every_node_serves_the_same_map_and_knows_which_it_is(shared: LocalCluster) -> None:
    maps = []
    for node in shared.state.nodes:
        with Talk(shared.address(node.name)) as talk:
            talk.hello(Feature.SELECT_BUCKET)
            talk.ask(kv.SelectBucket(bucket="default"))
            maps.append(json.loads(talk.ask(kv.GetClusterConfig()).value))
    assert [[bool(n.get("thisNode")) for n in told["nodesExt"]].index(True) for told in maps] == [
        0,
        1,
        2,
    ]
    assert len({json.dumps(told["vBucketServerMap"]) for told in maps}) == 1


def test_writers_and_readers_go_on_through_a_rebalance(cluster: LocalCluster) -> None:
    with Reader(cluster) as reader:
        with Writer(cluster) as writer:
            assert cluster.run("add-node")["added"] == "n4"
            lines = list(call(cluster.directory, "rebalance"))
            steps = [line["done"] for line in lines[:-1]]
            assert steps == sorted(steps)
            assert lines[-2]["done"] == lines[-2]["total"] > 0
            cluster.run("remove-node", "n1")
        active = [node["active"] for node in cluster.run("status")["nodes"]]
        assert max(active) - min(active) <= 1
        assert read_back(cluster, writer.documents) == writer.documents
        until(lambda: reader.documents() == writer.documents)
        assert reader.rollbacks == 0  # nothing was lost, so nobody had to forget anything
    assert_copies_equal(cluster)
    assert "n1" not in [node.name for node in cluster.state.nodes]
    assert cluster.run("rebalance")["moving"] == []  # nothing is left to do


@pytest.mark.story
def test_writers_and_readers_go_on_through_a_failover(cluster: LocalCluster) -> None:
    with Reader(cluster) as reader:
        with Writer(cluster) as writer:
            cluster.signal("n2", signal.SIGSTOP)  # it hangs, and would answer again later
            told = cluster.run("failover", "n2")
            assert [node["state"] for node in told["nodes"]] == ["up", "failed over", "up"]
            assert told["without_active"] == 0
            more = len(writer.documents) + 20
            until(lambda: len(writer.documents) >= min(more, 300))
            cluster.run("recover", "n2")
            cluster.run("rebalance")
        found = read_back(cluster, writer.documents)
        until(lambda: reader.documents() == found)
    assert_copies_equal(cluster)
    active = [node["active"] for node in cluster.run("status")["nodes"]]
    assert max(active) - min(active) <= 1


def test_a_rebalance_that_was_broken_off_can_be_begun_again(cluster: LocalCluster) -> None:
    with Writer(cluster) as writer:
        cluster.run("add-node")
        lines = call(cluster.directory, "rebalance")
        while next(lines)["done"] < 1:
            pass
        cluster.kill_manager()
        with pytest.raises(ConnectionFailed):
            list(lines)
        cluster.start()
        cluster.run("rebalance")
    told = cluster.run("status")
    assert [node["active"] for node in told["nodes"]] == [VBUCKETS // 4] * 4
    assert told["without_active"] == 0
    assert read_back(cluster, writer.documents) == writer.documents
    assert_copies_equal(cluster)


def test_a_node_that_dies_is_started_again_and_nothing_is_lost(shared: LocalCluster) -> None:
    with Writer(shared) as writer:
        shared.signal("n1", signal.SIGKILL)
        shared.signal("n3", signal.SIGKILL)
        before = dict(writer.documents)
        until(lambda: len(writer.documents) >= min(300, len(before) + 50))
    assert read_back(shared, writer.documents) == writer.documents
    assert_copies_equal(shared)


def test_what_cannot_be_done_is_refused_with_a_reason(shared: LocalCluster) -> None:
    with pytest.raises(ConfigError, match="no node 'n9'; there are n1, n2, n3"):
        shared.run("failover", "n9")
    with pytest.raises(ConfigError, match="no command 'dance'"):
        shared.run("dance")
    shared.run("failover", "n1")
    with pytest.raises(ConfigError, match="n2 has the only copy of vbucket"):
        shared.run("failover", "n2")
    shared.run("failover", "n1")  # once more changes nothing
    shared.run("recover", "n1")
    shared.run("rebalance")


@contextmanager
def pushed_maps(cluster: LocalCluster, name: str) -> Iterator[Callable[[], kv.ClustermapChanged]]:
    """A client that asked to be told of new maps."""
    with Talk(cluster.address(name)) as talk:
        talk.hello(
            Feature.SELECT_BUCKET, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION, Feature.JSON
        )
        talk.ask(kv.SelectBucket(bucket="default"))
        yield talk.read


def test_clients_that_want_to_know_are_sent_new_maps(shared: LocalCluster) -> None:
    with pushed_maps(shared, "n1") as pushed:
        rev = shared.state.rev
        shared.run("add-node")
        told = pushed()
        assert isinstance(told, kv.ClustermapChanged)
        assert told.bucket == "default"
        assert told.revision > rev
        assert b"vBucketMap" in told.config
    for node in shared.state.nodes[3:]:
        shared.run("remove-node", node.name)


def test_collections_of_one_node_become_those_of_all(shared: LocalCluster) -> None:
    with Talk(shared.address("n1")) as talk:
        talk.hello(Feature.COLLECTIONS)
        talk.ask(kv.SelectBucket(bucket="default"))
        manifest = (
            b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":'
            b'[{"name":"_default","uid":"0"},{"name":"more","uid":"8"}]}]}'
        )
        assert talk.ask(kv.SetManifest(manifest=manifest)).status is Status.SUCCESS

    def has_it(name: str) -> bool:
        with Talk(shared.address(name)) as talk:
            talk.hello(Feature.COLLECTIONS)
            talk.ask(kv.SelectBucket(bucket="default"))
            return b'"more"' in talk.ask(kv.GetManifest()).value

    until(lambda: all(has_it(node.name) for node in shared.state.nodes))


def test_with_users_only_they_and_the_manager_are_let_in(tmp_path: Path) -> None:
    users = users_file(tmp_path, {"reader": (Role.READ_STREAM,)})
    with LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=4, users=users) as cluster:
        assert cluster.run("status")["without_active"] == 0
        with Consumer(
            cluster.source, access=Access(user="reader", password=SECRET), end="now"
        ) as consumer:
            assert list(consumer) == []
        with Talk(cluster.address("n1")) as talk:
            assert talk.ask(kv.Get(vbucket=0, key=b"k")).status is Status.NO_ACCESS
        secret = tmp_path / "c" / "secret.json"
        assert secret.stat().st_mode & 0o077 == 0


def test_couchbases_own_client_writes_through_a_rebalance(shared: LocalCluster) -> None:
    pytest.importorskip("couchbase", reason="the couchbase package is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions, UpsertOptions

    hosts = ",".join(f"127.0.0.1:{node.port}" for node in shared.state.nodes)
    options = ClusterOptions(PasswordAuthenticator("anybody", "password"))
    client = Cluster(f"couchbase://{hosts}", options)
    try:
        documents = client.bucket("default").default_collection()
        written: dict[str, int] = {}
        errors: list[BaseException] = []
        over = threading.Event()

        def write() -> None:
            number = 0
            try:
                while not over.is_set():
                    key = f"doc-{number % 200}"
                    documents.upsert(key, number, UpsertOptions(timeout=timedelta(seconds=30)))
                    written[key] = number
                    number += 1
            except BaseException as error:
                errors.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: len(written) > 20 or bool(errors))
            added = shared.run("add-node")["added"]
            shared.run("rebalance")
            shared.run("remove-node", added)
            seen = len(written)
            until(lambda: len(written) >= min(200, seen + 20) or bool(errors))
        finally:
            over.set()
            writer.join(PATIENCE * 2)
        assert not errors
        assert {key: documents.get(key).content_as[int] for key in written} == written
    finally:
        client.close()
    assert_copies_equal(shared)
