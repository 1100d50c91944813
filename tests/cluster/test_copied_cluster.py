"""`upriver copy` of a cluster of processes that loses what was copied: the target ends equal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chaoskit import cut_off, heal
from clusterkit import PATIENCE
from localcluster import LocalCluster, MapClient
from waiting import until

from upriver.consumer import Consumer
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.model import Op
from upriver.testing import TemporaryProducer

DEFAULT = "_default._default"
QUICK = ("--master", "local[2]")


def documents(source: str) -> dict[tuple[str, bytes], tuple[bytes, int]]:
    """Values and CAS by collection and key; servers also send what dropped collections had."""
    found = {}
    with Consumer(source, end="now") as consumer:
        for change in consumer:
            if change.op is Op.MUTATION and not change.key.startswith(b"_upriver:"):
                found[change.collection, change.key] = change.value, change.cas
            else:
                found.pop((change.collection, change.key), None)
        names = consumer.collections.live_names()
    return {
        (".".join(names[collection]), key): version
        for (collection, key), version in found.items()
        if collection in names
    }


@contextmanager
def copying(source: str, target: str, directory: Path) -> Iterator[Callable[[], None]]:
    """A process that copies; what is yielded fails when it has ended. In the end it is stopped."""
    directory.mkdir()
    words = ("copy", source, target, "--checkpoint", str(directory / "positions"))
    log = directory / "copy.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "upriver", *words, *QUICK], stdout=output, stderr=output
        ) as copy,
    ):

        def goes_on() -> None:
            assert copy.poll() is None, log.read_text()

        try:
            yield goes_on
            copy.send_signal(signal.SIGTERM)
            assert copy.wait(PATIENCE * 10) == 0, log.read_text()
            assert "copied: " in log.read_text()
        finally:
            copy.kill()


@pytest.mark.release
def test_copies_go_on_when_a_node_is_given_up_with_what_only_it_had(tmp_path: Path) -> None:
    """A cluster is copied into a bucket, and that into another one."""
    with (
        LocalCluster(tmp_path / "c", nodes=3, replicas=1, vbuckets=8) as cluster,
        TemporaryProducer(vbuckets=4) as second,
        TemporaryProducer(vbuckets=2) as third,
        MapClient(cluster) as client,
    ):
        for number in range(100):
            client.set(b"k%d" % number, b"first")
        owner = client.map.owner(client.vbucket(b"k0"))
        assert owner is not None
        node = next(one.name for one in cluster.state.nodes if one.port == owner.address.port)
        with (
            copying(cluster.source, second.source, tmp_path / "1") as first_goes_on,
            copying(second.source, third.source, tmp_path / "2") as second_goes_on,
        ):

            def have(key: bytes, value: bytes) -> bool:
                first_goes_on()
                second_goes_on()
                return all(
                    documents(target.source).get((DEFAULT, key), (b"",))[0] == value
                    for target in (second, third)
                )

            def meanwhile() -> None:
                client.set(b"k0", b"lost")
                until(lambda: have(b"k0", b"lost"))

            until(lambda: have(b"k99", b"first"))
            cut_off(cluster, node, meanwhile)
            heal(cluster)
            until(lambda: have(b"k0", b"first"))
            # the second bucket goes back too, and with it the third
            vbucket = vbucket_of(b"k0", 4)
            high = second.bucket.vbucket_stats(vbucket).high_seqno
            second.write(b"k0", b"of nobody", vbucket)
            until(lambda: documents(third.source)[DEFAULT, b"k0"][0] == b"of nobody")
            second.fail_over(vbucket, high)
            until(lambda: have(b"k0", b"first"))
            client.set(b"k0", b"second")
            until(lambda: have(b"k0", b"second"))
            assert documents(third.source) == documents(second.source) == documents(cluster.source)


def test_a_copy_follows_the_collections_of_a_server(tmp_path: Path) -> None:
    def upriver(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "upriver", *words], check=True, timeout=PATIENCE * 10)

    with TemporaryProducer(vbuckets=4) as source, TemporaryProducer(vbuckets=2) as target:
        upriver("collections", "create", source.source, "shop.orders")
        upriver("load", source.source, "--docs", "50", "--collection", "shop.orders")
        with copying(source.source, target.source, tmp_path / "copy") as goes_on:

            def is_equal() -> bool:
                goes_on()
                return documents(target.source) == documents(source.source)

            until(lambda: is_equal() and len(documents(target.source)) == 50)
            upriver("collections", "create", source.source, "shop.late")
            upriver(
                "load", source.source, "--docs", "20", "--collection", "shop.late", "--prefix", "l"
            )
            until(lambda: is_equal() and len(documents(target.source)) == 70)
            upriver("collections", "drop", source.source, "shop.orders")
            until(lambda: is_equal() and len(documents(target.source)) == 20)
            upriver("collections", "create", source.source, "shop.orders")
            upriver("load", source.source, "--docs", "5", "--collection", "shop.orders")
            until(lambda: is_equal() and len(documents(target.source)) == 25)
