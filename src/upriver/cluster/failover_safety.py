"""Checks before a failover that other nodes have a copy of every vbucket of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ..errors import ConfigError, UpriverError
from .best_copy import Copies, Copy
from .node_link import NodeLink
from .placement import Row


async def copies_at(links: Mapping[str, NodeLink]) -> Copies:
    """What each node that answers has."""
    answers = await asyncio.gather(*map(_copies, links.values()))
    return {node: reply for node, reply in zip(links, answers, strict=True) if reply is not None}


async def _copies(link: NodeLink) -> Mapping[int, Copy] | None:
    try:
        return await link.copies()
    except UpriverError:
        return None


def refuse_if_only_copy(
    rows: Sequence[Row], lost: str, last_seen: Mapping[int, Copy], copies: Copies
) -> None:
    """Raises a `ConfigError` if a node has the only copy of a vbucket.

    Empty copies do not count if the node's own was seen to have something; a node that never
    answered can be failed over. Copies at nodes that do not answer count: they may be complete.
    """
    for vbucket, row in enumerate(rows):
        if row[0] != lost:
            continue
        others = [node for node in row[1:] if node is not None]
        if not others:
            raise ConfigError(
                f"{lost} has the only copy of vbucket {vbucket}: bring it back instead"
            )
        had = vbucket in last_seen and last_seen[vbucket].seqno > 0
        if had and all(_is_empty(copies, node, vbucket) for node in others):
            raise ConfigError(
                f"{lost} has the only copy of vbucket {vbucket}, as that at {others[0]} is empty "
                f"so far: wait until no changes are behind, or bring {lost} back instead"
            )


def _is_empty(copies: Copies, node: str, vbucket: int) -> bool:
    copy = copies[node].get(vbucket) if node in copies else None
    return node in copies and (copy is None or copy.seqno == 0)
