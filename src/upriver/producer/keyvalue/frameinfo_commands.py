"""Commands whose frame info may ask for a durable write, or for keeping a document's expiry."""

from __future__ import annotations

from typing import Final

from ...wire.protocol_enums import Command as C

#: Sub-document commands that write.
PATH_MUTATIONS: Final = frozenset(
    {
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
    }
)

#: Without the quiet commands: a client that expects no response cannot wait for replicas.
DURABLE: Final = PATH_MUTATIONS | {
    C.SET,
    C.ADD,
    C.REPLACE,
    C.DELETE,
    C.INCREMENT,
    C.DECREMENT,
    C.APPEND,
    C.PREPEND,
    C.TOUCH,
    C.GAT,
}

#: Commands that write a document which may already have an expiry. Several always keep it.
KEEPS_EXPIRY: Final = PATH_MUTATIONS | {
    C.SET,
    C.SETQ,
    C.REPLACE,
    C.REPLACEQ,
    C.INCREMENT,
    C.INCREMENTQ,
    C.DECREMENT,
    C.DECREMENTQ,
    C.APPEND,
    C.APPENDQ,
    C.PREPEND,
    C.PREPENDQ,
}
