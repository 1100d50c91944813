"""Opcodes and layouts of the key-value commands, for every draft with the memcached header.

The drafts describe only the change stream. It shares its port with the ordinary memcached
commands, whose opcodes (below 0x50, and from 0x80 on) no draft changes.
"""

from __future__ import annotations

from typing import Any

from .. import kv_messages as kv
from ..enum_codes import DATATYPES, FEATURES, MODERN_STATES, REQUESTED_STATES, Codes
from ..layout import (
    ALL_DATATYPES,
    Cas,
    KeyRule,
    Layout,
    Record,
    Value,
    const,
    length_of,
    reserved,
    u8,
    u16,
    u32,
    u64,
)
from ..packet_value_codecs import (
    ALL_SEQNOS,
    FAILOVER_LOG,
    OBSERVED_KEYS,
    U16_VERSION,
    feature_list,
    lookup_paths,
    mutation_paths,
    text,
)
from ..protocol_enums import Command as C

#: Commands that servers once had and do not any more: of ranges, of TAP, of checkpoints, and
#: others. They are known and not supported, where an opcode that nobody ever had is unknown.
RETIRED_OPCODES = frozenset(
    {
        *range(0x30, 0x3D),
        *range(0x40, 0x48),
        0x97,
        0x9E,
        0x9F,
        0xA6,
        0xA7,
        0xAA,
        0xAC,
        0xB0,
        0xB1,
        0xC1,
        0xC2,
        0xF0,
        0xF2,
    }
)

_BODY = Value(document=True)
_RAW = Value()
_RAW_OR_JSON = frozenset({0, 1})
#: What clients may store: extended attributes are written by path, or with metadata.
_WITHOUT_XATTRS = frozenset(range(4))


def _document(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    return Layout(command, opcode, message, Record(*slots), KeyRule.DOCUMENT, **rest)


def _twin(
    loud: tuple[C, int], quiet: tuple[C, int], message: type[Any], *slots: Any, **rest: Any
) -> list[Layout]:
    """The layouts of a document command and of its quiet variant."""
    constants = rest.pop("constants", {})
    return [
        _document(*loud, message, *slots, constants={**constants, "quiet": False}, **rest),
        _document(*quiet, message, *slots, constants={**constants, "quiet": True}, **rest),
    ]


def _plain(command: C, opcode: int, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    rest.setdefault("cas", Cas.ZERO)
    return Layout(command, opcode, message, Record(*slots), **rest)


def _reads() -> list[Layout]:
    layouts = []
    for with_key, loud, quiet in (
        (False, (C.GET, 0x00), (C.GETQ, 0x09)),
        (True, (C.GETK, 0x0C), (C.GETKQ, 0x0D)),
    ):
        layouts += _twin(loud, quiet, kv.Get, cas=Cas.ZERO, constants={"with_key": with_key})
    layouts += _twin((C.GAT, 0x1D), (C.GATQ, 0x1E), kv.GetAndTouch, u32("expiry"), cas=Cas.ZERO)
    layouts += [
        _document(C.GET_REPLICA, 0x83, kv.GetReplica, cas=Cas.ZERO),
        _document(C.GET_LOCKED, 0x94, kv.GetLocked, cas=Cas.ZERO),
        _document(C.GET_LOCKED, 0x94, kv.GetLocked, u32("lock_time"), cas=Cas.ZERO),
        _plain(C.GET_RANDOM_KEY, 0xB6, kv.GetRandomKey),
        _plain(C.GET_RANDOM_KEY, 0xB6, kv.GetRandomKey, u32("collection")),
    ]
    for slots in ((), (u8("version"),)):
        layouts += _twin((C.GET_META, 0xA0), (C.GETQ_META, 0xA1), kv.GetMeta, *slots, cas=Cas.ZERO)
    return layouts


def _writes() -> list[Layout]:
    body: dict[str, Any] = {"value": _BODY, "datatypes": _WITHOUT_XATTRS}
    store = (u32("flags"), u32("expiry"))
    count = (u64("delta"), u64("initial"), u32("expiry"))
    layouts = [
        *_twin((C.SET, 0x01), (C.SETQ, 0x11), kv.Set, *store, **body),
        *_twin((C.ADD, 0x02), (C.ADDQ, 0x12), kv.Add, *store, cas=Cas.ZERO, **body),
        *_twin((C.REPLACE, 0x03), (C.REPLACEQ, 0x13), kv.Replace, *store, **body),
        *_twin((C.APPEND, 0x0E), (C.APPENDQ, 0x19), kv.Append, **body),
        *_twin((C.PREPEND, 0x0F), (C.PREPENDQ, 0x1A), kv.Prepend, **body),
        *_twin((C.DELETE, 0x04), (C.DELETEQ, 0x14), kv.Delete),
        *_twin((C.INCREMENT, 0x05), (C.INCREMENTQ, 0x15), kv.Increment, *count, cas=Cas.ZERO),
        *_twin((C.DECREMENT, 0x06), (C.DECREMENTQ, 0x16), kv.Decrement, *count, cas=Cas.ZERO),
        _document(C.TOUCH, 0x1C, kv.Touch, u32("expiry"), cas=Cas.ZERO),
        _document(C.UNLOCK, 0x95, kv.Unlock, cas=Cas.SET),
    ]
    options = u32("options")
    meta_length = length_of("H", "extended_meta", "extended metadata length")
    for tail in ((), (meta_length,), (options,), (options, meta_length)):
        suffix = "extended_meta" if meta_length in tail else ""
        rest = {**body, "datatypes": ALL_DATATYPES, "suffix": suffix}
        written = (u32("flags"), u32("expiry"), u64("rev"), u64("new_cas"), *tail)
        deleted = (u32("flags"), u32("delete_time"), u64("rev"), u64("new_cas"), *tail)
        for add_only, loud, quiet in (
            (False, (C.SET_WITH_META, 0xA2), (C.SETQ_WITH_META, 0xA3)),
            (True, (C.ADD_WITH_META, 0xA4), (C.ADDQ_WITH_META, 0xA5)),
        ):
            layouts += _twin(
                loud, quiet, kv.SetWithMeta, *written, constants={"add_only": add_only}, **rest
            )
        layouts += _twin(
            (C.DELETE_WITH_META, 0xA8),
            (C.DELETEQ_WITH_META, 0xA9),
            kv.DeleteWithMeta,
            *deleted,
            **rest,
        )
    for slots in ((), (u32("delay"),)):
        for quiet_form, command, opcode in ((False, C.FLUSH, 0x08), (True, C.FLUSHQ, 0x18)):
            layouts.append(
                _plain(command, opcode, kv.FlushAll, *slots, constants={"quiet": quiet_form})
            )
    return layouts


_SUBDOC = {
    0xC5: C.SUBDOC_GET,
    0xC6: C.SUBDOC_EXISTS,
    0xC7: C.SUBDOC_DICT_ADD,
    0xC8: C.SUBDOC_DICT_UPSERT,
    0xC9: C.SUBDOC_DELETE,
    0xCA: C.SUBDOC_REPLACE,
    0xCB: C.SUBDOC_ARRAY_PUSH_LAST,
    0xCC: C.SUBDOC_ARRAY_PUSH_FIRST,
    0xCD: C.SUBDOC_ARRAY_INSERT,
    0xCE: C.SUBDOC_ARRAY_ADD_UNIQUE,
    0xCF: C.SUBDOC_COUNTER,
    0xD2: C.SUBDOC_GET_COUNT,
    0xD3: C.SUBDOC_REPLACE_BODY_WITH_XATTR,
}
#: Opcodes of whole-document commands among the paths of a multi-path command.
_PATH_OPCODES = Codes(
    "sub-document command", {**_SUBDOC, 0x00: C.GET, 0x01: C.SET, 0x02: C.ADD, 0x04: C.DELETE}
)


def _subdocs() -> list[Layout]:
    expiry, doc_flags = u32("expiry"), u8("doc_flags")
    layouts = []
    for opcode, command in _SUBDOC.items():
        for tail in ((), (doc_flags,), (expiry,), (expiry, doc_flags)):
            layouts.append(
                _document(
                    command,
                    opcode,
                    kv.SubdocOperation,
                    length_of("H", "path", "path length"),
                    u8("path_flags"),
                    *tail,
                    value=_RAW,
                    prefix="path",
                    datatypes=ALL_DATATYPES,
                )
            )
    lookups, changes = lookup_paths(_PATH_OPCODES), mutation_paths(_PATH_OPCODES)
    layouts += [
        _document(
            C.SUBDOC_MULTI_LOOKUP,
            0xD0,
            kv.SubdocMultiLookup,
            *tail,
            value=lookups,
        )
        for tail in ((), (doc_flags,))
    ]
    layouts += [
        _document(C.SUBDOC_MULTI_MUTATION, 0xD1, kv.SubdocMultiMutation, *tail, value=changes)
        for tail in ((), (doc_flags,), (expiry,), (expiry, doc_flags))
    ]
    return layouts


def _named(command: C, opcode: int, message: type[Any], attribute: str, **rest: Any) -> Layout:
    return _plain(command, opcode, message, key=KeyRule.NAME, key_attribute=attribute, **rest)


def _connection() -> list[Layout]:
    version = (u64("epoch"), u64("revision", minimum=1))
    payload = Value("payload")
    config = Value("config", required=True)
    pushed = Value("config")
    named: dict[str, Any] = {"key": KeyRule.OPTIONAL_NAME, "key_attribute": "bucket"}
    return [
        _plain(C.QUIT, 0x07, kv.Quit, constants={"quiet": False}),
        _plain(C.QUITQ, 0x17, kv.Quit, constants={"quiet": True}),
        _plain(C.NOOP, 0x0A, kv.Noop),
        _plain(C.VERSION, 0x0B, kv.Version),
        _plain(C.VERBOSITY, 0x1B, kv.Verbosity, u32("level")),
        _plain(
            C.STAT,
            0x10,
            kv.Stat,
            key=KeyRule.OPTIONAL_NAME,
            key_attribute="group",
            value=_RAW,
            datatypes=_RAW_OR_JSON,
        ),
        _plain(
            C.HELLO,
            0x1F,
            kv.Hello,
            key=KeyRule.OPTIONAL_NAME,
            key_attribute="agent",
            value=feature_list(FEATURES),
        ),
        _plain(C.SASL_LIST_MECHANISMS, 0x20, kv.SaslListMechanisms),
        _named(C.SASL_AUTH, 0x21, kv.SaslAuth, "mechanism", value=payload),
        _named(C.SASL_STEP, 0x22, kv.SaslStep, "mechanism", value=payload),
        _plain(C.LIST_BUCKETS, 0x87, kv.ListBuckets, cas=Cas.ANY),
        _named(C.SELECT_BUCKET, 0x89, kv.SelectBucket, "bucket", cas=Cas.ANY),
        _plain(C.GET_CLUSTER_CONFIG, 0xB5, kv.GetClusterConfig),
        _plain(C.GET_CLUSTER_CONFIG, 0xB5, kv.GetClusterConfig, *version),
        _plain(
            C.SET_CLUSTER_CONFIG,
            0xB4,
            kv.SetClusterConfig,
            *version,
            value=config,
            datatypes=_RAW_OR_JSON,
            **named,
        ),
        _plain(
            C.SET_CTRL_TOKEN,
            0xF4,
            kv.SetCtrlToken,
            u64("token"),
            value=_RAW,
            datatypes=_RAW_OR_JSON,
            cas=Cas.ANY,
        ),
        _plain(C.GET_ERROR_MAP, 0xFE, kv.GetErrorMap, value=U16_VERSION, no_vbucket=True),
        _plain(
            C.CLUSTERMAP_CHANGED,
            0x01,
            kv.ClustermapChanged,
            *version,
            value=pushed,
            datatypes=_RAW_OR_JSON,
            **named,
        ),
        _plain(
            C.CLUSTERMAP_CHANGED,
            0x01,
            kv.ClustermapChanged,
            u32("revision"),
            value=pushed,
            datatypes=_RAW_OR_JSON,
            **named,
        ),
    ]


def _by_path(command: C, opcode: int, message: type[Any]) -> list[Layout]:
    """A question about a scope or collection; old clients send its path as the key."""
    return [
        _plain(command, opcode, message, value=text("path", required=False), no_vbucket=True),
        _named(command, opcode, message, "path", no_vbucket=True),
    ]


def _vbuckets() -> list[Layout]:
    state = u32("state", REQUESTED_STATES)
    manifest = Value("manifest", required=True)
    return [
        _plain(
            C.SET_VBUCKET,
            0x3D,
            kv.SetVBucket,
            u8("state", MODERN_STATES),
            value=_RAW,
            datatypes=_RAW_OR_JSON,
        ),
        # as up to release 4
        _plain(C.SET_VBUCKET, 0x3D, kv.SetVBucket, u32("state", MODERN_STATES)),
        _plain(C.GET_VBUCKET, 0x3E, kv.GetVBucket),
        _plain(C.DELETE_VBUCKET, 0x3F, kv.DeleteVBucket, value=_RAW),
        _plain(C.GET_ALL_SEQNOS, 0x48, kv.GetAllSeqnos),
        _plain(C.GET_ALL_SEQNOS, 0x48, kv.GetAllSeqnos, state),
        _plain(C.GET_ALL_SEQNOS, 0x48, kv.GetAllSeqnos, state, u32("collection")),
        _plain(C.GET_FAILOVER_LOG, 0x96, kv.GetFailoverLog, cas=Cas.ANY),
        _plain(C.OBSERVE, 0x92, kv.Observe, value=OBSERVED_KEYS),
        _plain(
            C.OBSERVE_SEQNO,
            0x91,
            kv.ObserveSeqno,
            value=Value(record=Record(u64("vbuuid"))),
            cas=Cas.ANY,
        ),
        _plain(C.SEQNO_PERSISTENCE, 0xB7, kv.SeqnoPersistence, u64("seqno")),
        _plain(C.STOP_PERSISTENCE, 0x80, kv.StopPersistence),
        _plain(C.START_PERSISTENCE, 0x81, kv.StartPersistence),
        _plain(
            C.COMPACT,
            0xB3,
            kv.Compact,
            u64("purge_before_time"),
            u64("purge_before_seqno"),
            u8("drop_deletes", bool),
            reserved("B"),
            reserved("H", "file id"),
            reserved("I"),
        ),
        _plain(C.SET_MANIFEST, 0xB9, kv.SetManifest, value=manifest, no_vbucket=True),
        _plain(C.GET_MANIFEST, 0xBA, kv.GetManifest, no_vbucket=True),
        *_by_path(C.GET_COLLECTION_ID, 0xBB, kv.GetCollectionId),
        *_by_path(C.GET_SCOPE_ID, 0xBC, kv.GetScopeId),
    ]


def _response(command: C, message: type[Any], *slots: Any, **rest: Any) -> Layout:
    return Layout(
        command, _OPCODES[command], message, Record(*slots), datatypes=ALL_DATATYPES, **rest
    )


def _document_responses() -> list[Layout]:
    layouts = []
    for command in (
        C.GET,
        C.GETQ,
        C.GETK,
        C.GETKQ,
        C.GAT,
        C.GATQ,
        C.GET_REPLICA,
        C.GET_LOCKED,
        C.GET_RANDOM_KEY,
    ):
        layouts.append(
            _response(command, kv.DocumentResponse, u32("flags"), key=KeyRule.RAW, value=_BODY)
        )
    token = (u64("vbuuid"), u64("seqno"))
    for command in (
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
        C.TOUCH,
        C.SET_WITH_META,
        C.SETQ_WITH_META,
        C.ADD_WITH_META,
        C.ADDQ_WITH_META,
        C.DELETE_WITH_META,
        C.DELETEQ_WITH_META,
    ):
        layouts += [_response(command, kv.MutationResponse, *slots) for slots in ((), token)]
    counter = Value(record=Record(u64("value")))
    for command in (C.INCREMENT, C.INCREMENTQ, C.DECREMENT, C.DECREMENTQ):
        layouts += [
            _response(command, kv.CounterResponse, *slots, value=counter) for slots in ((), token)
        ]
    meta = (u32("deleted", bool), u32("flags"), u32("expiry"), u64("rev"))
    for command in (C.GET_META, C.GETQ_META):
        layouts += [
            _response(command, kv.MetaResponse, *meta),
            _response(command, kv.MetaResponse, *meta, u8("document_datatype", DATATYPES)),
        ]
    return layouts


def _other_responses() -> list[Layout]:
    seqnos = (u16("vbucket"), u64("vbuuid"), u64("persisted_seqno"), u64("current_seqno"))
    collection_id = (u64("manifest_uid"), u32("id"))
    return [
        _response(
            C.STAT,
            kv.StatResponse,
            key=KeyRule.OPTIONAL_NAME,
            value=_RAW,
        ),
        _response(C.HELLO, kv.HelloResponse, value=feature_list(FEATURES)),
        _response(
            C.GET_VBUCKET,
            kv.VBucketResponse,
            value=Value(record=Record(u32("state", MODERN_STATES))),
        ),
        _response(C.GET_ALL_SEQNOS, kv.AllSeqnosResponse, value=ALL_SEQNOS),
        _response(C.GET_FAILOVER_LOG, kv.GetFailoverLogResponse, value=FAILOVER_LOG),
        _response(
            C.OBSERVE_SEQNO,
            kv.ObserveSeqnoResponse,
            value=Value(record=Record(const("B", 0, "format"), *seqnos)),
        ),
        _response(
            C.OBSERVE_SEQNO,
            kv.ObserveSeqnoResponse,
            value=Value(
                record=Record(const("B", 1, "format"), *seqnos, u64("old_vbuuid"), u64("old_seqno"))
            ),
        ),
        _response(C.GET_COLLECTION_ID, kv.CollectionIdResponse, *collection_id),
        _response(C.GET_SCOPE_ID, kv.CollectionIdResponse, *collection_id),
    ]


def _scans() -> list[Layout]:
    scan = (u64("scan_high"), u64("scan_low"))
    return [
        _plain(
            C.RANGE_SCAN_CREATE,
            0xDA,
            kv.RangeScanCreate,
            value=_RAW,
            datatypes=_RAW_OR_JSON,
        ),
        _plain(
            C.RANGE_SCAN_CONTINUE,
            0xDB,
            kv.RangeScanContinue,
            *scan,
            u32("item_limit"),
            u32("time_limit"),
            u32("byte_limit"),
        ),
        _plain(C.RANGE_SCAN_CANCEL, 0xDC, kv.RangeScanCancel, *scan),
    ]


REQUESTS = [*_reads(), *_scans(), *_writes(), *_subdocs(), *_connection(), *_vbuckets()]
_OPCODES = {layout.command: layout.opcode for layout in REQUESTS}
RESPONSES = [*_document_responses(), *_other_responses()]
