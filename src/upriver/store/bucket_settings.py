"""Settings of a bucket: each with its default and what it costs.

They are stored beside the data, so that a bucket opens again with the same settings.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from ..errors import ConfigError
from ..model import VBucketState
from ..wire.limits import MAX_VALUE

#: The number of vbuckets of a Couchbase bucket.
MAX_VBUCKETS = 1024

_MIB = 1024 * 1024
_DAY = 24 * 60 * 60


class SyncMode(Enum):
    """When a write is acknowledged to its writer."""

    #: After its group is synced to disk. An acknowledged write survives a power failure. Costs
    #: one sync per group.
    DURABLE = "durable"
    #: After its group is written; it is synced within `BucketSettings.sync_interval`. An
    #: acknowledged write survives the end of the process, but not a power failure, after which
    #: every active vbucket begins a new branch.
    RELAXED = "relaxed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The settings of one bucket. Only ``vbuckets`` cannot be changed later."""

    vbuckets: int = MAX_VBUCKETS
    #: The state of every vbucket of a new bucket.
    initial_state: VBucketState = VBucketState.ACTIVE
    durability: SyncMode = SyncMode.DURABLE
    #: Relaxed only: seconds between syncs. A power failure loses at most the writes of this time.
    sync_interval: float = 0.05
    #: The most changes in one group. More make a sync cheaper per change, but delay each change.
    group_changes: int = 4096

    #: Seconds for which a vbucket can be rolled back exactly. Costs the bytes of every version that
    #: was overwritten or deleted in that time, and a second write of each.
    history_age: int = _DAY
    #: The most bytes of such versions in the whole bucket; the oldest are dropped first.
    history_bytes: int = 1024 * _MIB
    #: Seconds until a tombstone may be purged. Each costs its key and about 150 bytes until then. A
    #: consumer that was disconnected for longer must start again from seqno 0.
    purge_age: int = 3 * _DAY
    #: Seconds between rounds of expiry, purge and trimming; 0 leaves them to `Bucket.compact`. A
    #: round over an idle bucket costs a few milliseconds.
    maintenance_interval: float = 10.0

    #: The most collections and scopes, as many as Couchbase servers allow. Creating one writes a
    #: change to each vbucket, in one commit. Existing ones above the limit stay.
    max_collections: int = 1200
    max_scopes: int = 1200

    #: Whether clients may flush the bucket, if their server allows it.
    flush_enabled: bool = True
    #: What clients see of compression: ``passive`` or ``active``. Either way documents are
    #: kept as they were written, compressed or not.
    compression_mode: str = "passive"
    #: The largest document; larger ones are refused.
    max_value: int = MAX_VALUE
    #: Bytes of memory for writes not yet in sorted files. Less memory means more, smaller files.
    write_memory: int = 64 * _MIB
    #: Bytes of memory for cached blocks, indexes and filters, besides the page cache of the
    #: operating system. Together with ``write_memory`` it is most of the memory of an idle bucket,
    #: however large the bucket is on disk.
    read_memory: int = 256 * _MIB

    def __post_init__(self) -> None:
        if not 1 <= self.vbuckets <= MAX_VBUCKETS:
            raise ConfigError(f"a bucket has 1 to {MAX_VBUCKETS} vbuckets, not {self.vbuckets}")
        for name in ("history_age", "history_bytes", "purge_age", "maintenance_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} cannot be negative, it is {getattr(self, name)}")
        for name in (
            "sync_interval",
            "group_changes",
            "max_collections",
            "max_scopes",
            "max_value",
            "write_memory",
            "read_memory",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0, it is {getattr(self, name)}")

    def dump(self) -> bytes:
        """Returns the stored form: a JSON object with one member per setting."""
        return json.dumps(
            asdict(self), indent=1, default=lambda member: member.name.lower()
        ).encode()

    @classmethod
    def load(cls, raw: bytes) -> BucketSettings:
        """Parses `dump`. Raises ValueError if it is invalid. Unknown settings are ignored."""
        stored: dict[str, Any] = json.loads(raw)
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        try:
            known["initial_state"] = VBucketState[known["initial_state"].upper()]
            known["durability"] = SyncMode(known["durability"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError, ConfigError) as problem:
            raise ValueError(str(problem)) from None
