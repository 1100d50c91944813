"""Which right a command needs: to read, to write, to administer, to stream.

A command in several of these sets is open to whoever has one of the rights; a command in none
needs no right but to be connected. Who has which right is the server's business.
"""

from __future__ import annotations

from typing import Final

from ...wire.names import Command as C

__all__ = ["ADMINISTERS", "READS", "STREAMS", "WRITES"]

#: What tells of a bucket and not of its documents; readers of any kind need it to find their way.
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
    C.GET_META,
    C.GETQ_META,
    C.SUBDOC_GET,
    C.SUBDOC_EXISTS,
    C.SUBDOC_GET_COUNT,
    C.SUBDOC_MULTI_LOOKUP,
    C.OBSERVE,
}

#: Commands that read and write at once are here: whoever may write may also see what was there.
WRITES: Final = _ORIENTATION | {
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
    C.SUBDOC_DICT_ADD,
    C.SUBDOC_DICT_UPSERT,
    C.SUBDOC_DELETE,
    C.SUBDOC_REPLACE,
    C.SUBDOC_ARRAY_PUSH_LAST,
    C.SUBDOC_ARRAY_PUSH_FIRST,
    C.SUBDOC_ARRAY_INSERT,
    C.SUBDOC_ARRAY_ADD_UNIQUE,
    C.SUBDOC_COUNTER,
    C.SUBDOC_REPLACE_BODY_WITH_XATTR,
    C.SUBDOC_MULTI_MUTATION,
    C.OBSERVE,
    C.SEQNO_PERSISTENCE,
}

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
    C.ADD_STREAM,
    C.VERBOSITY,
}

#: What a reader of the change stream sends.
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
