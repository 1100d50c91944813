"""Files that are created once, in a store that has done what it was asked and cannot say so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from storekit_s3 import BUCKET, s3_server
from worlds.network import Network, NetworkSettings
from worlds.object_store import ObjectStore, SimulatedStorage
from worlds.patched_stdlib import machine
from worlds.scheduler import Process, Scheduler
from worlds.threads import Threads

from upriver.consumer.groups.cells import Stored
from upriver.consumer.groups.object_store import ObjectGroupStore
from upriver.files.storage import Storage, StorageFailed
from upriver.tables.format import delta_log
from upriver.tables.lease import held_lease
from upriver.testing import ChaosProxy


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture
def proxy(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ChaosProxy]:
    """Every request goes through it."""
    address = urlsplit(server["AWS_ENDPOINT_URL"])
    assert address.hostname is not None
    assert address.port is not None
    with ChaosProxy((address.hostname, address.port)) as proxy:
        for name, value in server.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.host}:{proxy.port}")
        yield proxy


def test_a_file_of_which_the_answer_was_lost_is_recognised(proxy: ChaosProxy) -> None:
    storage = Storage.parse(f"s3://{BUCKET}/files")
    proxy.cut_after(1)
    assert storage.create("a", b"mine")
    proxy.cut_after(1)
    assert not storage.create("a", b"another's")
    assert storage.read("a") == b"mine"


def test_a_commit_of_which_the_answer_was_lost_is_made(proxy: ChaosProxy) -> None:
    storage = Storage.parse(f"s3://{BUCKET}/log")
    proxy.cut_after(1)
    assert delta_log.commit(storage, 0, [], operation="one") is not None
    proxy.cut_after(1)
    assert delta_log.commit(storage, 0, [], operation="two") is None


def test_a_lease_is_its_holders_whichever_answer_was_lost(proxy: ChaosProxy) -> None:
    """Nobody else is there: the process never takes a lease of its own for another's."""
    storage = Storage.parse(f"s3://{BUCKET}/leases")
    for _ in range(2):  # the first one finds no lease before it
        before = proxy.counts.bytes_to_client
        with held_lease(storage, wait=False):
            pass
        size = proxy.counts.bytes_to_client - before
    cuts = 0
    for lost in range(1, size, 150):
        proxy.cut_after(lost)
        try:
            with held_lease(storage, wait=False) as lease:
                lease.check()
        except StorageFailed:
            continue
        finally:
            cuts += proxy.counts.truncations > cuts
    assert cuts > 5


@pytest.mark.parametrize("seed", range(10))
def test_a_lease_that_a_process_did_not_hear_of_does_not_stop_it(seed: int) -> None:
    """Each request may fail before or after it was done, also those that look what was done."""
    scheduler = Scheduler(random.Random(seed))
    network = Network(scheduler, random.Random(seed), NetworkSettings(), lambda *_: None)
    process = Process("one", scheduler, network)
    threads = Threads()
    store = ObjectStore(random.Random(seed), lambda: scheduler.now)
    store.failing = 0.4
    storage = SimulatedStorage("memory://table", store=store)
    held, failed = [], []

    def work() -> None:
        for number in range(20):
            try:
                with held_lease(storage, wait=False):
                    held.append(number)
            except StorageFailed:
                failed.append(number)

    with machine(network, threads, lambda process: process, lambda host, pid: True):
        threads.start(process, work)
        scheduler.run(lambda: len(held) + len(failed) == 20, before=100.0)
        threads.end_all()
    process.dispose()
    assert len(held) + len(failed) == 20
    assert held


def test_a_group_meets_in_a_store_that_loses_its_first_answer(proxy: ChaosProxy) -> None:
    """The store repeats a request itself, and is told that the object exists."""
    store = ObjectGroupStore(f"s3://{BUCKET}/groups")
    proxy.cut_after(1)
    assert store.write("g/cell", b"1", 0) == 1
    proxy.cut_after(1)
    assert store.write("g/cell", b"2", 1) is None
    assert store.read("g/cell") == Stored(b"2", 2)  # rules read it again, and find what they wrote
    storage = Storage.parse(f"s3://{BUCKET}/groups")
    assert not list(storage.files("probe"))
