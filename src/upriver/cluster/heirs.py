"""Who takes the place of a node that is given up: of each vbucket that it had, the best copy.

It asks the nodes that are left what they have, and says which rows follow; the `Manager` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from ..errors import ConfigError, UpriverError
from . import plan
from .node_link import Copy, NodeLink
from .plan import Row

__all__ = ["Copies", "copies_at", "inherited_rows", "refuse_if_only_copy"]

#: By node, what it has of each vbucket. Who does not answer is not named.
Copies = Mapping[str, Mapping[int, Copy]]


async def copies_at(links: Mapping[str, NodeLink]) -> Copies:
    """What the nodes have that answer."""
    answers = await asyncio.gather(*map(_copies, links.values()))
    return {node: told for node, told in zip(links, answers, strict=True) if told is not None}


async def _copies(link: NodeLink) -> Mapping[int, Copy] | None:
    try:
        return await link.copies()
    except UpriverError:
        return None


def refuse_if_only_copy(
    rows: Sequence[Row], lost: str, last_seen: Mapping[int, Copy], copies: Copies
) -> None:
    """Raises if a vbucket would be gone with a node: nobody else has anything of it.

    A copy is nothing while it is empty and the node's own is known not to be: one that never
    answered can be given up. Copies at nodes that do not answer count, they may have everything.
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


async def inherited_rows(
    rows: Sequence[Row], lost: str, links: Mapping[str, NodeLink]
) -> tuple[Row, ...]:
    """The rows without a node that is gone: the best of the other copies takes its place."""
    copies = await copies_at(links)
    found = []
    for vbucket, row in enumerate(rows):
        heir = None
        if row[0] == lost:
            candidates = {
                node: copies[node][vbucket]
                for node in row[1:]
                if node is not None and vbucket in copies.get(node, ())
            }
            heir = await _best(vbucket, candidates, links)
        found.append(_inherited(row, lost, heir))
    return tuple(found)


async def _best(
    vbucket: int, candidates: Mapping[str, Copy], links: Mapping[str, NodeLink]
) -> str | None:
    """The copy with most: the latest branch counts first, then how far it has come on it."""
    if len(candidates) < 2:
        return next(iter(candidates), None)
    logs: dict[str, list[int]] = {}
    for node in candidates:
        with contextlib.suppress(UpriverError):  # whoever is lost meanwhile is not the best
            logs[node] = await links[node].branches(vbucket)

    def worth(node: str) -> tuple[int, int]:
        later_than = sum(other[0] in logs[node] for other in logs.values())
        return later_than, candidates[node].seqno

    return max(logs, key=worth, default=None)


def _inherited(row: Row, lost: str, heir: str | None) -> Row:
    """A row without a node, and with another's copy as the active one if there is an heir."""
    left = plan.without(row, lost)
    if heir is None:
        return left
    others = [node for node in left if node is not None and node != heir]
    return (heir, *others, *(None,) * len(row))[: len(row)]
