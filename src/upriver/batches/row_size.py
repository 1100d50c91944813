"""How large changes are, for limits of bytes: a sample of those that wait is read."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..consumer.client import Consumer
from ..errors import ConfigError, ConnectionFailed
from .options import ReadOptions
from .source_access import reading_settings

_log = logging.getLogger(__name__)

#: How many changes are read to learn their size, and for how many seconds that is believed.
_SAMPLE_ROWS: Final = 256
_SAMPLE_SECONDS: Final = 60.0
#: What a change is taken for that nobody could read: a key, some metadata and a small document.
_USUAL_ROW: Final = 512.0


class RowSize:
    """The mean size of changes, which is sampled again from time to time."""

    def __init__(self) -> None:
        self._bytes = _USUAL_ROW
        self._sampled_at = -_SAMPLE_SECONDS

    def learn(self, options: ReadOptions, waiting: Mapping[int, int]) -> float:
        """Reads a few changes of the vbucket with most of them ``waiting``; the mean size."""
        if time.monotonic() - self._sampled_at < _SAMPLE_SECONDS:
            return self._bytes
        vbucket = max(waiting, key=lambda vb: waiting[vb], default=None)
        if vbucket is None or waiting[vbucket] <= 0 or options.mute is not None:
            return self._bytes  # a server that tells no seqnos has no end to sample up to
        self._sampled_at = time.monotonic()
        read = reading_settings(options, vbuckets=frozenset({vbucket}), end="now")
        # values as rows will have them; a sample is not worth waiting for a node
        settings = replace(read, decompress=options.rows.inflate, wait_at_start=0.0)
        rows = size = 0
        try:
            with Consumer(options.source, access=options.access, settings=settings) as consumer:
                for batch in consumer.batches():
                    rows += batch.num_rows
                    size += batch.nbytes
                    if rows >= _SAMPLE_ROWS:
                        break
        except (ConnectionFailed, ConfigError) as problem:
            _log.warning("the size of changes is not known: %s", problem)
        if rows:
            self._bytes = size / rows
        return self._bytes
