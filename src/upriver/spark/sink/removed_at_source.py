"""Removes documents that a source has lost: those that its ``restated`` rows do not name.

The keys of the target are read from its own change stream, without values, in the vbuckets that
can have keys of the source's. All documents of the restated collections count as copies of the
source's, so a target has one source.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from ...batches.options import WriteOptions
from ...batches.restate import Restated
from ...consumer.client import Consumer
from ...consumer.consumer_settings import ConsumerSettings
from ...consumer.topology.cluster_map import vbucket_of
from ...consumer.writing.version_copies import restored_removal
from ...consumer.writing.write_operations import removal
from ...consumer.writing.writer import Writer
from ...model import Op
from .row_edits import FENCE_PREFIX


def remove_others(
    options: WriteOptions,
    opened: Writer,
    restated: Mapping[int, Sequence[Restated]],
    *,
    has_metadata: bool,
) -> None:
    """Removes what is not restated, by collection id.

    ``has_metadata``: documents have the CAS and the revision of their source.
    """
    now = int(time.time())
    for collection, key in _others(options, opened, restated):
        opened.put(
            restored_removal(key, now=now, collection=collection)
            if has_metadata
            else removal(key, collection=collection)
        )
    opened.flush()


def _others(
    options: WriteOptions, opened: Writer, restated: Mapping[int, Sequence[Restated]]
) -> Iterator[tuple[int, bytes]]:
    """The documents that the target has or had, and the source has not."""
    ranges: dict[tuple[int, int, int], list[Restated]] = {}
    for collection, some in restated.items():
        for one in some:
            ranges.setdefault((collection, one.vbuckets, one.vbucket), []).append(one)
    counts = {count for _, count, _ in ranges}
    named = [".".join(opened.collections.names(place)) for place in sorted(restated)]
    settings = ConsumerSettings(
        vbuckets=frozenset(vb for _, _, vb in ranges) if counts == {opened.vbuckets} else None,
        end="now",
        values=False,
        # servers without collections know no filter
        collections=() if 0 in restated else tuple(named),
        connect_timeout=options.connect_timeout,
        answer_timeout=options.request_timeout,
        wait_at_start=options.retry_timeout,
        give_up_after=options.retry_timeout,
    )
    with Consumer(options.source, access=options.access, settings=settings) as consumer:
        for batch in consumer.batches():
            columns = (batch.column(name).to_pylist() for name in ("op", "collection", "key"))
            for op, collection, key in zip(*columns, strict=True):
                if (
                    op == Op.MUTATION.value
                    and not key.startswith(FENCE_PREFIX)
                    and any(
                        one.excludes(key)
                        for count in counts
                        for one in ranges.get((collection, count, vbucket_of(key, count)), ())
                    )
                ):
                    yield collection, key
