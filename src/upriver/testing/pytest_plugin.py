"""The pytest plugin: fixtures with temporary producers, proxies and clusters.

    def test_my_reader(upriver_producer):
        upriver_producer.write(b"order:1", b"{}")
        assert my_reader(upriver_producer.source) == ["order:1"]

pytest loads it where Upriver is installed; it imports nothing before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from .chaos_proxy import ChaosProxy
    from .temporary_cluster import TemporaryCluster
    from .temporary_producer import TemporaryProducer

__all__ = [
    "ProducerBehindProxy",
    "upriver_behind_proxy",
    "upriver_cluster",
    "upriver_clusters",
    "upriver_producer",
    "upriver_producers",
]


class ProducerBehindProxy(NamedTuple):
    """A producer whose clients all connect through a `ChaosProxy`."""

    producer: TemporaryProducer
    proxy: ChaosProxy


@pytest.fixture
def upriver_producers() -> Iterator[Callable[..., TemporaryProducer]]:
    """Starts producers with settings of your own; they are removed when the test ends."""
    from .temporary_producer import TemporaryProducer

    with ExitStack() as running:
        yield lambda **settings: running.enter_context(TemporaryProducer(**settings))


@pytest.fixture
def upriver_producer(
    upriver_producers: Callable[..., TemporaryProducer],
) -> TemporaryProducer:
    """A producer with 64 empty vbuckets: ``source`` is its connection string."""
    return upriver_producers()


@pytest.fixture
def upriver_behind_proxy(
    upriver_producers: Callable[..., TemporaryProducer],
) -> Iterator[ProducerBehindProxy]:
    """A producer behind a proxy that can cut, delay, truncate and corrupt its connections."""
    from .chaos_proxy import ChaosProxy

    with ChaosProxy() as proxy:
        producer = upriver_producers(advertise=(proxy.host, proxy.port))
        proxy.target = producer.host, producer.port
        yield ProducerBehindProxy(producer, proxy)


@pytest.fixture
def upriver_clusters() -> Iterator[Callable[..., TemporaryCluster]]:
    """Starts clusters with settings of your own; they are removed when the test ends."""
    from .temporary_cluster import TemporaryCluster

    with ExitStack() as running:
        yield lambda **settings: running.enter_context(TemporaryCluster(**settings))


@pytest.fixture
def upriver_cluster(
    upriver_clusters: Callable[..., TemporaryCluster],
) -> TemporaryCluster:
    """A cluster of three nodes, 16 vbuckets, one replica: to kill, pause, fail over, rebalance."""
    return upriver_clusters()
