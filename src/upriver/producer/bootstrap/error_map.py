"""Error map: describes to clients how to handle each status, including ones they do not know.

    version     1 or 2; the second knows more attributes
    revision    counts changes to the map within a version
    errors      for each status, its number in hexadecimal: name, description, attributes

The numbers are those of the protocol. The attributes are those that Couchbase Server sends, because
clients decide by them whether to retry, to fetch a cluster map, or to drop the connection.
"""

from __future__ import annotations

import functools
import json
from typing import Final

from ...errors import Status
from ...wire.enum_codes import STATUSES

MAX_VERSION: Final = 2
_REVISION: Final = 1

#: Attributes that clients of version 1 do not know.
_SINCE_VERSION_2: Final = frozenset({"rate-limit", "system-constraint", "no-retry"})

S = Status
#: Description and attributes of each status; the attributes are separated by spaces.
ERRORS: Final[dict[Status, tuple[str, str]]] = {
    S.SUCCESS: ("done", "success"),
    S.NOT_FOUND: ("there is no such key", "item-only"),
    S.EXISTS: ("the key exists, or its CAS is another", "item-only"),
    S.TOO_BIG: ("the value is too big", "item-only invalid-input"),
    S.INVALID: ("the request is not valid", "internal invalid-input"),
    S.NOT_STORED: ("the condition for storing was not met", "internal item-only"),
    S.BAD_DELTA: ("the document is no number", "item-only invalid-input"),
    S.NOT_MY_VBUCKET: ("the vbucket is on another node", "fetch-config invalid-input"),
    S.NO_BUCKET: ("no bucket is selected", "conn-state-invalidated"),
    S.LOCKED: ("the document is locked", "item-locked item-only retry-now"),
    S.STREAM_NOT_FOUND: ("there is no such stream", "conn-state-invalidated"),
    S.OPAQUE_NO_MATCH: ("the opaque is not the stream's", "conn-state-invalidated"),
    S.WOULD_THROTTLE: ("the request would have to wait", "temp retry-later rate-limit"),
    S.CONFIG_ONLY: ("the node has only the bucket's map", "fetch-config invalid-input"),
    S.NOT_LOCKED: ("the document is not locked", "item-only"),
    S.CAS_VALUE_INVALID: ("no document can have this CAS", "invalid-input"),
    S.AUTH_STALE: ("the authentication is out of date", "conn-state-invalidated auth"),
    S.AUTH_ERROR: ("the authentication failed", "conn-state-invalidated auth"),
    S.AUTH_CONTINUE: ("the authentication goes on", "special-handling"),
    S.RANGE: ("a number is out of range", "invalid-input"),
    S.ROLLBACK: ("the reader has to roll back", "dcp special-handling"),
    S.NO_ACCESS: ("the user may not do this", "support"),
    S.NOT_INITIALISED: ("the server is not ready", "conn-state-invalidated"),
    S.ENCRYPTION_KEY_NOT_AVAILABLE: ("a key for encryption is missing", "temp retry-later"),
    S.CHECKSUM_MISMATCH: ("a checksum does not fit", "invalid-input"),
    S.EXPIRY_OVERFLOW: ("the expiry is too far away", "invalid-input"),
    S.LOCK_EXPIRY_OVERFLOW: ("the lock would last too long", "invalid-input"),
    S.RATE_LIMITED_NETWORK_INGRESS: ("too much was sent", "temp retry-later rate-limit"),
    S.RATE_LIMITED_NETWORK_EGRESS: ("too much was received", "temp retry-later rate-limit"),
    S.RATE_LIMITED_MAX_CONNECTIONS: ("too many connections", "conn-state-invalidated rate-limit"),
    S.RATE_LIMITED_MAX_COMMANDS: ("too many requests", "temp retry-later rate-limit"),
    S.BUCKET_SIZE_LIMIT_EXCEEDED: ("the bucket is full", "item-only rate-limit"),
    S.BUCKET_RESIDENT_RATIO_TOO_LOW: ("too little fits into memory", "system-constraint"),
    S.BUCKET_DATA_SIZE_TOO_BIG: ("the bucket has too much data", "system-constraint"),
    S.BUCKET_DISK_SPACE_TOO_LOW: ("the disk is nearly full", "system-constraint"),
    S.BUCKET_PAUSED: ("the bucket is paused", "support"),
    S.CANCELLED: ("the request was cancelled and changed nothing", "item-only retry-now"),
    S.UNKNOWN_FRAME_INFO: ("a frame info is not known", "support"),
    S.UNKNOWN_COMMAND: ("the command is not known", "support"),
    S.NO_MEMORY: ("there is no memory for it", "temp retry-later"),
    S.NOT_SUPPORTED: ("this is not supported here", "support"),
    S.INTERNAL: ("the server failed", "internal conn-state-invalidated"),
    S.BUSY: ("the server is busy", "temp retry-now"),
    S.TEMPORARY_FAILURE: ("this did not work now", "temp retry-now"),
    S.XATTR_INVALID: ("the extended attributes are not valid", "invalid-input"),
    S.UNKNOWN_COLLECTION: ("there is no such collection", "invalid-input"),
    S.MANIFEST_NOT_APPLIED: ("the manifest cannot be applied", "invalid-input"),
    S.MANIFEST_AHEAD: ("the client knows a newer manifest", "temp retry-later"),
    S.UNKNOWN_SCOPE: ("there is no such scope", "invalid-input"),
    S.STREAM_ID_INVALID: ("the stream id is not valid", "invalid-input"),
    S.DURABILITY_INVALID_LEVEL: ("there is no such durability", "invalid-input"),
    S.DURABILITY_IMPOSSIBLE: ("there are too few replicas", "item-only invalid-input"),
    S.SYNC_WRITE_IN_PROGRESS: ("a durable write is under way", "item-only retry-later"),
    S.SYNC_WRITE_AMBIGUOUS: ("a durable write may have worked or not", "item-only"),
    S.SYNC_WRITE_RECOMMIT_IN_PROGRESS: (
        "a durable write is being repeated",
        "item-only retry-later",
    ),
    S.RANGE_SCAN_CANCELLED: ("the scan was cancelled", "success"),
    S.RANGE_SCAN_MORE: ("the scan has more", "success"),
    S.RANGE_SCAN_COMPLETE: ("the scan is complete", "success"),
    S.VBUUID_NOT_EQUAL: ("the vbucket has another vbuuid", "invalid-input"),
    S.SUBDOC_PATH_NOT_FOUND: ("the path is not in the document", "subdoc item-only"),
    S.SUBDOC_PATH_MISMATCH: ("the document has another shape", "subdoc item-only"),
    S.SUBDOC_PATH_INVALID: ("the path is not valid", "subdoc invalid-input"),
    S.SUBDOC_PATH_TOO_BIG: ("the path is too long", "subdoc invalid-input"),
    S.SUBDOC_DOC_TOO_DEEP: ("the document is too deep", "subdoc invalid-input"),
    S.SUBDOC_VALUE_CANNOT_INSERT: ("the value cannot go there", "subdoc invalid-input"),
    S.SUBDOC_DOC_NOT_JSON: ("the document is not JSON", "subdoc item-only"),
    S.SUBDOC_NUMBER_RANGE: ("the number is out of range", "subdoc item-only"),
    S.SUBDOC_DELTA_INVALID: ("the delta is not valid", "subdoc item-only"),
    S.SUBDOC_PATH_EXISTS: ("the path exists", "subdoc item-only"),
    S.SUBDOC_VALUE_TOO_DEEP: ("the value is too deep", "subdoc invalid-input item-only"),
    S.SUBDOC_INVALID_COMBINATION: ("these do not go together", "subdoc invalid-input"),
    S.SUBDOC_MULTI_PATH_FAILURE: ("some paths failed", "subdoc special-handling"),
    S.SUBDOC_SUCCESS_DELETED: ("done, on a deleted document", "item-deleted success subdoc"),
    S.SUBDOC_XATTR_INVALID_FLAGS: ("these flags do not go together", "subdoc invalid-input"),
    S.SUBDOC_XATTR_INVALID_KEYS: ("these attributes do not go together", "subdoc invalid-input"),
    S.SUBDOC_XATTR_UNKNOWN_MACRO: ("there is no such macro", "subdoc invalid-input"),
    S.SUBDOC_XATTR_UNKNOWN_VATTR: ("there is no such virtual attribute", "subdoc invalid-input"),
    S.SUBDOC_XATTR_CANNOT_MODIFY_VATTR: (
        "virtual attributes cannot be written",
        "subdoc invalid-input",
    ),
    S.SUBDOC_MULTI_PATH_FAILURE_DELETED: (
        "some paths failed, on a deleted document",
        "item-deleted subdoc special-handling",
    ),
    S.SUBDOC_INVALID_XATTR_ORDER: ("attributes have to come first", "subdoc invalid-input"),
    S.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO: ("there is no such macro", "subdoc invalid-input"),
    S.SUBDOC_CAN_ONLY_REVIVE_DELETED: ("the document is not deleted", "subdoc item-only"),
    S.SUBDOC_DELETED_CANNOT_HAVE_VALUE: (
        "a deleted document has no value",
        "subdoc item-only",
    ),
    S.SUBDOC_FIELD_NOT_BINARY: ("the attribute is not binary", "subdoc item-only"),
}


def error_map(version: int) -> bytes | None:
    """Returns the map for a client that supports versions up to this one; None if there is none."""
    return _build(min(version, MAX_VERSION)) if version >= 1 else None


@functools.cache
def _build(version: int) -> bytes:
    hidden = _SINCE_VERSION_2 if version < 2 else frozenset[str]()
    errors = {}
    for number, status in STATUSES.items():
        description, attributes = ERRORS[status]
        errors[f"{number:x}"] = {
            "name": status.name,
            "desc": description,
            "attrs": [attribute for attribute in attributes.split() if attribute not in hidden],
        }
    document = {"version": version, "revision": _REVISION, "errors": errors}
    return json.dumps(document, separators=(",", ":")).encode()
