"""What an owner may choose about a bucket, each choice with its default and what it costs.

A bucket's settings are kept beside its data, so that it opens again as it was made.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from ..errors import ConfigError
from ..model import VBucketState
from ..wire.limits import MAX_VALUE

__all__ = ["MAX_VBUCKETS", "BucketSettings", "Durability"]

#: As many as any real bucket has.
MAX_VBUCKETS = 1024

_MIB = 1024 * 1024
_DAY = 24 * 60 * 60


class Durability(Enum):
    """When a writer is answered."""

    #: After its group is synced to disk: an answer survives a power cut. Costs one sync a group.
    DURABLE = "durable"
    #: After its group is written, synced within `BucketSettings.sync_interval`: an answer
    #: survives the process but not a power cut, after which every active vbucket branches.
    RELAXED = "relaxed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """One bucket's choices. Only ``vbuckets`` is fixed for its life."""

    vbuckets: int = MAX_VBUCKETS
    #: The state of every vbucket of a new bucket.
    initial_state: VBucketState = VBucketState.ACTIVE
    durability: Durability = Durability.DURABLE
    #: Relaxed only: seconds between syncs, and so the most that a power cut can take.
    sync_interval: float = 0.05
    #: The most changes in one group: more make a sync cheaper, and the wait for it longer.
    group_changes: int = 4096

    #: Seconds for which a vbucket can be rolled back to where it was. Costs the bytes of every
    #: version overwritten or deleted in that time, and a second write of each.
    history_age: int = _DAY
    #: The most bytes of such versions in the whole bucket; what is oldest goes first.
    history_bytes: int = 1024 * _MIB
    #: Seconds until a tombstone may go. Each costs its key and about 150 bytes until then; a
    #: reader that stays away for longer has to begin again.
    purge_age: int = 3 * _DAY
    #: Seconds between rounds of expiry, purging and trimming; 0 leaves them to `Bucket.compact`.
    #: A round over an idle bucket costs a few milliseconds.
    maintenance_interval: float = 10.0

    #: The largest document; larger ones are refused.
    max_value: int = MAX_VALUE
    #: Bytes of memory for writes not yet in sorted files. Less means more and smaller files.
    write_memory: int = 64 * _MIB
    #: Bytes of memory for blocks read from disk, beside what the operating system caches.
    read_memory: int = 256 * _MIB

    def __post_init__(self) -> None:
        if not 1 <= self.vbuckets <= MAX_VBUCKETS:
            raise ConfigError(f"a bucket has 1 to {MAX_VBUCKETS} vbuckets, not {self.vbuckets}")
        for name in ("history_age", "history_bytes", "purge_age", "maintenance_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} cannot be negative, it is {getattr(self, name)}")
        for name in ("sync_interval", "group_changes", "max_value", "write_memory", "read_memory"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0, it is {getattr(self, name)}")

    def dump(self) -> bytes:
        """As it is kept: a JSON object with one member for each setting."""
        return json.dumps(
            asdict(self), indent=1, default=lambda member: member.name.lower()
        ).encode()

    @classmethod
    def load(cls, raw: bytes) -> BucketSettings:
        """Reads `dump`; ValueError says what is wrong. Settings it does not know are left out."""
        stored: dict[str, Any] = json.loads(raw)
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        try:
            known["initial_state"] = VBucketState[known["initial_state"].upper()]
            known["durability"] = Durability(known["durability"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError, ConfigError) as problem:
            raise ValueError(str(problem)) from None
