"""A store to begin with, and a look at all of it in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import QUIET, Clock

from upriver.store import Bucket, Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store(tmp_path / "store", wall=clock) as store:
        yield store


@pytest.fixture
def bucket(store: Store) -> Iterator[Bucket]:
    bucket = store.create_bucket("b", QUIET)
    yield bucket
    if not bucket.closed:
        assert bucket.verify() == []
