"""Cluster membership of a node: its identity, the manager's epoch, and its write lease.

Every manager has an epoch, higher than that of every manager before it. A node obeys only the
newest epoch that it has seen, and stores that number on disk. It accepts writes only while it holds
a lease: if the node does not hear from its manager, the manager may have given its vbuckets to
other nodes.

The lease is renewed with tickets, so that a renewal that was delayed in a socket while the node was
stopped does not extend the lease:

    manager ── SET_CTRL_TOKEN epoch, ticket 0 ──> node
            <── ticket t1: the node's clock now ──
            ── SET_CTRL_TOKEN epoch, ticket t1 ──>      the lease ends at t1 + its length
            <── ticket t2 ──                            and so on

A lease counts from the time at which the node issued the ticket, which is before the manager
received it. So a manager that received its last ticket at a time T knows that the lease has ended
at T plus its length, whatever happened to later messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import _entropy
from .._files import replace_file
from ..errors import ConfigError

logger = logging.getLogger("upriver.producer")

#: The user name of a cluster's manager on its nodes. Couchbase's internal users start with the same
#: sign; no other user name can.
MANAGER: Final = "@manager"
#: Bytes of the random id that distinguishes one process of a node from the next.
_INSTANCE_BYTES: Final = 8
#: An epoch counts starts of managers. A file with more digits than this is not an epoch file.
_MAX_EPOCH_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """The identity of a node in its cluster."""

    cluster: str
    node: str
    #: Length of the lease in seconds: how long the node may accept writes after a ticket was
    #: issued.
    lease: float
    #: Id of the lock that the node's process holds. A manager checks it, so that it does not take
    #: the end of another process for the end of this one.
    lock: str = ""
    #: File with the newest epoch; None keeps it in memory only.
    epoch_file: Path | None = None


class NodeLease:
    """The manager's epoch and the lease of a node. Only the event loop's thread may use it."""

    def __init__(self, member: NodeIdentity, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        """``now`` is a monotonic clock in nanoseconds."""
        self.member = member
        #: Distinguishes this process from earlier ones of the node.
        self.instance = _entropy.token_hex(_INSTANCE_BYTES)
        self.epoch = _load(member.epoch_file)
        self._now = now
        self._length = int(member.lease * 1e9)
        self._until = 0
        self._was_leased = False

    @property
    def leased(self) -> bool:
        """Whether writes may be accepted and acknowledged at this moment."""
        held = self._now() < self._until
        if held is not self._was_leased:
            self._was_leased = held
            if held:
                logger.info("the lease of epoch %d is held: writes are answered", self.epoch)
            else:
                logger.warning(
                    "no manager renewed the lease for %g seconds: writes are refused",
                    self.member.lease,
                )
        return held

    def renew(self, epoch: int, ticket: int) -> int:
        """Renews the lease for a manager whose epoch is not older; returns the next ticket."""
        if epoch > self.epoch:
            _save(epoch, self.member.epoch_file)
            logger.info("epoch %d: the manager of epoch %d is obeyed no more", epoch, self.epoch)
            self.epoch = epoch
        now = self._now()
        if 0 < ticket <= now:
            self._until = max(self._until, ticket + self._length)
        return now


def _load(path: Path | None) -> int:
    if path is None:
        return 0
    try:
        text = path.read_text(encoding="ascii").strip()
        if not text.isdecimal() or len(text) > _MAX_EPOCH_DIGITS:
            raise ValueError(f"it says {text[:_MAX_EPOCH_DIGITS]!r}")
        return int(text)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as problem:
        raise ConfigError(f"the epoch in {path} cannot be read: {problem}") from None


def _save(epoch: int, path: Path | None) -> None:
    """Stores an epoch. It is on disk when this returns."""
    if path is not None:
        replace_file(path, f"{epoch}\n".encode("ascii"), private=False)
