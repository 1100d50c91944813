"""Role that each command requires: read, write, administer or stream.

A command in several of these sets is allowed with any one of the roles. A command in none of them
requires only a connection. The server decides which roles a user has.
"""

from __future__ import annotations

from typing import Final

from ...wire.protocol_enums import Command as C
from .frameinfo_commands import PATH_MUTATIONS

#: Commands about a bucket as a whole, not its documents. Every role needs them to use the bucket.
_ORIENTATION: Final = frozenset(
    {
        C.STAT,
        C.GET_VBUCKET,
        C.GET_ALL_SEQNOS,
        C.GET_FAILOVER_LOG,
        C.OBSERVE_SEQNO,
        C.GET_MANIFEST,
        C.GET_COLLECTION_ID,
        C.GET_SCOPE_ID,
    }
)

READS: Final = _ORIENTATION | {
    C.GET,
    C.GETQ,
    C.GETK,
    C.GETKQ,
    C.GET_REPLICA,
    C.GET_RANDOM_KEY,
    C.RANGE_SCAN_CREATE,
    C.RANGE_SCAN_CONTINUE,
    C.RANGE_SCAN_CANCEL,
    C.GET_META,
    C.GETQ_META,
    C.SUBDOC_GET,
    C.SUBDOC_EXISTS,
    C.SUBDOC_GET_COUNT,
    C.SUBDOC_MULTI_LOOKUP,
    C.OBSERVE,
}

#: Includes commands that read and write at once: a role that may write may also read the old value.
WRITES: Final = (
    _ORIENTATION
    | PATH_MUTATIONS
    | {
        C.GAT,
        C.GATQ,
        C.GET_LOCKED,
        C.UNLOCK,
        C.SET,
        C.SETQ,
        C.ADD,
        C.ADDQ,
        C.REPLACE,
        C.REPLACEQ,
        C.APPEND,
        C.APPENDQ,
        C.PREPEND,
        C.PREPENDQ,
        C.DELETE,
        C.DELETEQ,
        C.INCREMENT,
        C.INCREMENTQ,
        C.DECREMENT,
        C.DECREMENTQ,
        C.TOUCH,
        C.SET_WITH_META,
        C.SETQ_WITH_META,
        C.ADD_WITH_META,
        C.ADDQ_WITH_META,
        C.DELETE_WITH_META,
        C.DELETEQ_WITH_META,
        C.OBSERVE,
        C.SEQNO_PERSISTENCE,
    }
)

ADMINISTERS: Final = _ORIENTATION | {
    C.FLUSH,
    C.FLUSHQ,
    C.SET_VBUCKET,
    C.DELETE_VBUCKET,
    C.COMPACT,
    C.SET_MANIFEST,
    C.STOP_PERSISTENCE,
    C.START_PERSISTENCE,
    C.SEQNO_PERSISTENCE,
    C.SET_CLUSTER_CONFIG,
    C.SET_CTRL_TOKEN,
    C.ADD_STREAM,
    C.VERBOSITY,
}

#: Commands that a DCP consumer sends.
STREAMS: Final = _ORIENTATION | {
    C.OPEN,
    C.CLOSE_STREAM,
    C.STREAM_REQUEST,
    C.FAILOVER_LOG,
    C.BUFFER_ACK,
    C.CONTROL,
    C.STREAM_NOOP,
    C.SEQNO_ACKNOWLEDGED,
    C.SEQNO_PERSISTENCE,
}
