"""Wire numbers of enums (statuses, features, states, reasons) that messages or drafts share.

Opcodes are in the dialects, with their layouts. A dialect chooses between the two numberings of
states and stream end reasons, which changed between the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Status
from ..model import Datatype, StreamEndReason, VBucketState
from .protocol_enums import DurabilityLevel, Feature, RequestedState


@dataclass(frozen=True, slots=True)
class Codes:
    """A two-way mapping between the members of an enum and their wire numbers."""

    what: str
    names: Mapping[int, Any]
    numbers: Mapping[Any, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: number for number, name in self.names.items()})

    def load(self, number: int) -> Any:
        try:
            return self.names[number]
        except KeyError:
            raise ValueError(f"{number} is not a known {self.what}") from None

    def dump(self, name: Any) -> int:
        try:
            return self.numbers[name]
        except KeyError:
            raise ValueError(f"{name} is not a {self.what} in this draft") from None


STATUSES = {
    0x00: Status.SUCCESS,
    0x01: Status.NOT_FOUND,
    0x02: Status.EXISTS,
    0x03: Status.TOO_BIG,
    0x04: Status.INVALID,
    0x05: Status.NOT_STORED,
    0x06: Status.BAD_DELTA,
    0x07: Status.NOT_MY_VBUCKET,
    0x08: Status.NO_BUCKET,
    0x09: Status.LOCKED,
    0x0A: Status.STREAM_NOT_FOUND,
    0x0B: Status.OPAQUE_NO_MATCH,
    0x0C: Status.WOULD_THROTTLE,
    0x0D: Status.CONFIG_ONLY,
    0x0E: Status.NOT_LOCKED,
    0x0F: Status.CAS_VALUE_INVALID,
    0x1F: Status.AUTH_STALE,
    0x20: Status.AUTH_ERROR,
    0x21: Status.AUTH_CONTINUE,
    0x22: Status.RANGE,
    0x23: Status.ROLLBACK,
    0x24: Status.NO_ACCESS,
    0x25: Status.NOT_INITIALISED,
    0x26: Status.ENCRYPTION_KEY_NOT_AVAILABLE,
    0x27: Status.CHECKSUM_MISMATCH,
    0x28: Status.EXPIRY_OVERFLOW,
    0x29: Status.LOCK_EXPIRY_OVERFLOW,
    0x30: Status.RATE_LIMITED_NETWORK_INGRESS,
    0x31: Status.RATE_LIMITED_NETWORK_EGRESS,
    0x32: Status.RATE_LIMITED_MAX_CONNECTIONS,
    0x33: Status.RATE_LIMITED_MAX_COMMANDS,
    0x35: Status.BUCKET_SIZE_LIMIT_EXCEEDED,
    0x36: Status.BUCKET_RESIDENT_RATIO_TOO_LOW,
    0x37: Status.BUCKET_DATA_SIZE_TOO_BIG,
    0x38: Status.BUCKET_DISK_SPACE_TOO_LOW,
    0x50: Status.BUCKET_PAUSED,
    0x51: Status.CANCELLED,
    0x80: Status.UNKNOWN_FRAME_INFO,
    0x81: Status.UNKNOWN_COMMAND,
    0x82: Status.NO_MEMORY,
    0x83: Status.NOT_SUPPORTED,
    0x84: Status.INTERNAL,
    0x85: Status.BUSY,
    0x86: Status.TEMPORARY_FAILURE,
    0x87: Status.XATTR_INVALID,
    0x88: Status.UNKNOWN_COLLECTION,
    0x8A: Status.MANIFEST_NOT_APPLIED,
    0x8B: Status.MANIFEST_AHEAD,
    0x8C: Status.UNKNOWN_SCOPE,
    0x8D: Status.STREAM_ID_INVALID,
    0xA0: Status.DURABILITY_INVALID_LEVEL,
    0xA1: Status.DURABILITY_IMPOSSIBLE,
    0xA2: Status.SYNC_WRITE_IN_PROGRESS,
    0xA3: Status.SYNC_WRITE_AMBIGUOUS,
    0xA4: Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS,
    0xA5: Status.RANGE_SCAN_CANCELLED,
    0xA6: Status.RANGE_SCAN_MORE,
    0xA7: Status.RANGE_SCAN_COMPLETE,
    0xA8: Status.VBUUID_NOT_EQUAL,
    0xC0: Status.SUBDOC_PATH_NOT_FOUND,
    0xC1: Status.SUBDOC_PATH_MISMATCH,
    0xC2: Status.SUBDOC_PATH_INVALID,
    0xC3: Status.SUBDOC_PATH_TOO_BIG,
    0xC4: Status.SUBDOC_DOC_TOO_DEEP,
    0xC5: Status.SUBDOC_VALUE_CANNOT_INSERT,
    0xC6: Status.SUBDOC_DOC_NOT_JSON,
    0xC7: Status.SUBDOC_NUMBER_RANGE,
    0xC8: Status.SUBDOC_DELTA_INVALID,
    0xC9: Status.SUBDOC_PATH_EXISTS,
    0xCA: Status.SUBDOC_VALUE_TOO_DEEP,
    0xCB: Status.SUBDOC_INVALID_COMBINATION,
    0xCC: Status.SUBDOC_MULTI_PATH_FAILURE,
    0xCD: Status.SUBDOC_SUCCESS_DELETED,
    0xCE: Status.SUBDOC_XATTR_INVALID_FLAGS,
    0xCF: Status.SUBDOC_XATTR_INVALID_KEYS,
    0xD0: Status.SUBDOC_XATTR_UNKNOWN_MACRO,
    0xD1: Status.SUBDOC_XATTR_UNKNOWN_VATTR,
    0xD2: Status.SUBDOC_XATTR_CANNOT_MODIFY_VATTR,
    0xD3: Status.SUBDOC_MULTI_PATH_FAILURE_DELETED,
    0xD4: Status.SUBDOC_INVALID_XATTR_ORDER,
    0xD5: Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO,
    0xD6: Status.SUBDOC_CAN_ONLY_REVIVE_DELETED,
    0xD7: Status.SUBDOC_DELETED_CANNOT_HAVE_VALUE,
    0xD8: Status.SUBDOC_FIELD_NOT_BINARY,
}

#: The numbers of vbucket states in today's servers, and in the vbucket commands of all servers.
MODERN_STATES = Codes(
    "vbucket state",
    {
        1: VBucketState.ACTIVE,
        2: VBucketState.REPLICA,
        3: VBucketState.PENDING,
        4: VBucketState.DEAD,
    },
)
REQUESTED_STATES = Codes(
    "vbucket state to ask for",
    {
        0: RequestedState.ALIVE,
        1: RequestedState.ACTIVE,
        2: RequestedState.REPLICA,
        3: RequestedState.PENDING,
        4: RequestedState.DEAD,
    },
)
FEATURES = Codes(
    "feature",
    {
        0x01: Feature.DATATYPE,
        0x02: Feature.TLS,
        0x03: Feature.TCP_NODELAY,
        0x04: Feature.MUTATION_SEQNO,
        0x05: Feature.TCP_DELAY,
        0x06: Feature.XATTR,
        0x07: Feature.XERROR,
        0x08: Feature.SELECT_BUCKET,
        0x0A: Feature.SNAPPY,
        0x0B: Feature.JSON,
        0x0C: Feature.DUPLEX,
        0x0D: Feature.CLUSTERMAP_NOTIFICATION,
        0x0E: Feature.UNORDERED_EXECUTION,
        0x0F: Feature.TRACING,
        0x10: Feature.ALT_REQUEST,
        0x11: Feature.SYNC_REPLICATION,
        0x12: Feature.COLLECTIONS,
        0x13: Feature.SNAPPY_EVERYWHERE,
        0x14: Feature.PRESERVE_TTL,
        0x15: Feature.VATTR,
        0x17: Feature.CREATE_AS_DELETED,
        0x18: Feature.DOCUMENT_MACRO,
        0x19: Feature.REPLACE_BODY_WITH_XATTR,
        0x1A: Feature.UNIT_USAGE,
        0x1B: Feature.NON_BLOCKING_THROTTLE,
        0x1C: Feature.SUBDOC_REPLICA_READ,
        0x1D: Feature.CLUSTERMAP_KNOWN_VERSION,
        0x1E: Feature.DEDUPE_NOT_MY_VBUCKET,
        0x1F: Feature.CLUSTERMAP_BRIEF_NOTIFICATION,
    },
)

#: The numbers of stream end reasons in today's servers.
MODERN_REASONS = Codes(
    "stream end reason",
    {
        0: StreamEndReason.OK,
        1: StreamEndReason.CLOSED,
        2: StreamEndReason.STATE_CHANGED,
        3: StreamEndReason.DISCONNECTED,
        4: StreamEndReason.TOO_SLOW,
        5: StreamEndReason.BACKFILL_FAILED,
        6: StreamEndReason.ROLLBACK,
        7: StreamEndReason.FILTER_EMPTY,
        8: StreamEndReason.LOST_PRIVILEGES,
    },
)
DURABILITY_LEVELS = Codes(
    "durability level",
    {
        1: DurabilityLevel.MAJORITY,
        2: DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER,
        3: DurabilityLevel.PERSIST_TO_MAJORITY,
    },
)
#: The numbers of vbucket states on a stream in the drafts and in releases up to 3.0.
DRAFT_STATES = Codes(
    "vbucket state",
    {
        1: VBucketState.ACTIVE,
        2: VBucketState.PENDING,
        3: VBucketState.REPLICA,
        4: VBucketState.DEAD,
    },
)


#: The numbers of stream end reasons in the drafts.
DRAFT_REASONS = Codes(
    "stream end reason", {0: StreamEndReason.OK, 1: StreamEndReason.STATE_CHANGED}
)

DATATYPES = Codes("datatype", {number: Datatype(number) for number in range(8)})
