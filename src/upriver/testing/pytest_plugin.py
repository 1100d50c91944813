"""Fixtures for people who test their own change-stream code; pytest finds them when installed.

    def test_my_reader(upriver_producer):
        upriver_producer.write(b"order:1", b"{}")
        assert my_reader(upriver_producer.source) == ["order:1"]

Nothing is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from .chaos import ChaosProxy
    from .cluster import TemporaryCluster
    from .temporary import TemporaryProducer

__all__ = [
    "ProducerBehindProxy",
    "upriver_behind_proxy",
    "upriver_cluster",
    "upriver_clusters",
    "upriver_producer",
    "upriver_producers",
]


class ProducerBehindProxy(NamedTuple):
    """A producer whose clients all come through a network that breaks on command."""

    producer: TemporaryProducer
    proxy: ChaosProxy


@pytest.fixture
def upriver_producers() -> Iterator[Callable[..., TemporaryProducer]]:
    """Makes producers with settings of your own; they are gone when the test ends."""
    from contextlib import ExitStack

    from .temporary import TemporaryProducer

    with ExitStack() as running:

        def start(**settings: Any) -> TemporaryProducer:
            return running.enter_context(TemporaryProducer(**settings))

        yield start


@pytest.fixture
def upriver_producer(
    upriver_producers: Callable[..., TemporaryProducer],
) -> TemporaryProducer:
    """A producer with 64 empty vbuckets: ``source`` for clients, and faults on demand."""
    return upriver_producers()


@pytest.fixture
def upriver_behind_proxy(
    upriver_producers: Callable[..., TemporaryProducer],
) -> Iterator[ProducerBehindProxy]:
    """The same behind a proxy, to cut, delay, truncate and corrupt what flows."""
    from .chaos import ChaosProxy

    with ChaosProxy() as proxy:
        producer = upriver_producers(advertise=(proxy.host, proxy.port))
        proxy.target = producer.host, producer.port
        yield ProducerBehindProxy(producer, proxy)


@pytest.fixture
def upriver_clusters() -> Iterator[Callable[..., TemporaryCluster]]:
    """Makes clusters with settings of your own; they are gone when the test ends."""
    from contextlib import ExitStack

    from .cluster import TemporaryCluster

    with ExitStack() as running:

        def start(**settings: Any) -> TemporaryCluster:
            return running.enter_context(TemporaryCluster(**settings))

        yield start


@pytest.fixture
def upriver_cluster(
    upriver_clusters: Callable[..., TemporaryCluster],
) -> TemporaryCluster:
    """Three nodes with a replica of each of 16 vbuckets: to kill, pause, fail over, rebalance."""
    return upriver_clusters()
