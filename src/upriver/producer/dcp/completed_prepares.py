"""Which commits a snapshot has for the prepares that its consumer received before."""

from __future__ import annotations

from ...store import Bucket, CompletionKind


def commits_until(
    bucket: Bucket, vbucket: int, pending: dict[bytes, int], end: int
) -> dict[int, int] | None:
    """Maps each seqno up to ``end`` that commits a prepare to the prepare's seqno.

    ``pending`` are the prepares that the consumer has. Returns None if the snapshot cannot be
    sent as one from memory: a later write has replaced the commit or abort of a prepare, or the
    prepares were not completed in their order.
    """
    completed: list[tuple[int, int, bool]] = []
    lowest_open: int | None = None
    for key, prepared in pending.items():
        found = bucket.completion(vbucket, key, prepared)
        if found.kind is CompletionKind.UNKNOWN:
            return None
        if found.kind is CompletionKind.PENDING or found.seqno > end:
            lowest_open = prepared if lowest_open is None else min(prepared, lowest_open)
        else:
            is_commit = found.kind is CompletionKind.COMMITTED
            completed.append((found.seqno, prepared, is_commit))
    completed.sort()
    order = [prepared for _, prepared, _ in completed]
    if order != sorted(order) or (lowest_open is not None and order and lowest_open < order[-1]):
        return None
    return {seqno: prepared for seqno, prepared, is_commit in completed if is_commit}
