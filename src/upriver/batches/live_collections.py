"""Leaves documents of dropped collections out of a batch read.

A server sends them until it has erased them, which may take long. Which collections there are is
said by the manifest, and by the events of streams since then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ..consumer.topology.collection_names import Collections
from ..errors import RemoteProtocolError


class LiveCollections:
    """The rows of collections that were not dropped.

    ``newest`` asks a server for its manifest: a collection that no event has announced may be newer
    than the manifest that the reader began with. It is called once for each such collection.
    """

    def __init__(self, newest: Callable[[], Collections]) -> None:
        self._newest = newest
        self._looked_up: dict[int, bool] = {}

    def rows(self, batch: pa.RecordBatch, known: Collections) -> pa.RecordBatch:
        """The rows of decoded changes, as far as their collections are live."""
        if not batch.num_rows:
            return batch
        numbers = batch.column("collection").to_numpy()
        met = numbers[:1] if (numbers == numbers[0]).all() else np.unique(numbers)
        gone = [number for number in met.tolist() if not self._is_live(number, known)]
        return batch.filter(pa.array(~np.isin(numbers, gone))) if gone else batch

    def _is_live(self, number: int, known: Collections) -> bool:
        if number in known.collections:
            return known.is_live(number)
        if number not in self._looked_up:
            newest = self._newest()
            if not newest.scopes:
                raise RemoteProtocolError(
                    f"the server's manifest has no scope, not even _default, but there are changes "
                    f"of the collection {number:#x}: it is not the manifest of this bucket, and "
                    "which documents live cannot be known; see the server's log"
                )
            self._looked_up[number] = newest.is_live(number)
        return self._looked_up[number]
