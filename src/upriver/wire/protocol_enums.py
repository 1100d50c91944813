"""Enums of commands, features, flags and durability levels, without their wire numbers.

The numbers of the enums are in the dialects. Flags are bit sets that no draft renumbers, so they
have their bits here.
"""

from __future__ import annotations

from enum import Enum, IntFlag, StrEnum, auto
from typing import Final, Literal, get_args

#: The drafts that a client can be told to speak; "auto" tries them in this order.
DialectName = Literal["auto", "dcp", "001", "000", "002"]
DIALECT_NAMES: Final[tuple[str, ...]] = get_args(DialectName)


class Command(StrEnum):
    """Every request of any draft, by name; a response has the name of its request."""

    # the change stream
    OPEN = auto()
    ADD_STREAM = auto()
    CLOSE_STREAM = auto()
    STREAM_REQUEST = auto()
    FAILOVER_LOG = auto()
    STREAM_START = auto()
    STREAM_END = auto()
    SNAPSHOT_START = auto()
    SNAPSHOT_END = auto()
    SNAPSHOT_MARKER = auto()
    MUTATION = auto()
    DELETION = auto()
    EXPIRATION = auto()
    FLUSH_STREAM = auto()
    SET_STREAM_STATE = auto()
    STREAM_NOOP = auto()
    BUFFER_ACK = auto()
    CONTROL = auto()
    SYSTEM_EVENT = auto()
    PREPARE = auto()
    SEQNO_ACKNOWLEDGED = auto()
    COMMIT = auto()
    ABORT = auto()
    SEQNO_ADVANCED = auto()
    OSO_SNAPSHOT = auto()
    CACHE_TRANSFER = auto()
    CACHE_TRANSFER_END = auto()
    REQUEST_ERROR = auto()
    RESPONSE_ERROR = auto()
    # documents
    GET = auto()
    GETQ = auto()
    GETK = auto()
    GETKQ = auto()
    GAT = auto()
    GATQ = auto()
    GET_REPLICA = auto()
    GET_LOCKED = auto()
    GET_RANDOM_KEY = auto()
    RANGE_SCAN_CREATE = auto()
    RANGE_SCAN_CONTINUE = auto()
    RANGE_SCAN_CANCEL = auto()
    GET_META = auto()
    GETQ_META = auto()
    SET = auto()
    SETQ = auto()
    ADD = auto()
    ADDQ = auto()
    REPLACE = auto()
    REPLACEQ = auto()
    APPEND = auto()
    APPENDQ = auto()
    PREPEND = auto()
    PREPENDQ = auto()
    DELETE = auto()
    DELETEQ = auto()
    INCREMENT = auto()
    INCREMENTQ = auto()
    DECREMENT = auto()
    DECREMENTQ = auto()
    TOUCH = auto()
    UNLOCK = auto()
    SET_WITH_META = auto()
    SETQ_WITH_META = auto()
    ADD_WITH_META = auto()
    ADDQ_WITH_META = auto()
    DELETE_WITH_META = auto()
    DELETEQ_WITH_META = auto()
    FLUSH = auto()
    FLUSHQ = auto()
    # parts of documents
    SUBDOC_GET = auto()
    SUBDOC_EXISTS = auto()
    SUBDOC_DICT_ADD = auto()
    SUBDOC_DICT_UPSERT = auto()
    SUBDOC_DELETE = auto()
    SUBDOC_REPLACE = auto()
    SUBDOC_ARRAY_PUSH_LAST = auto()
    SUBDOC_ARRAY_PUSH_FIRST = auto()
    SUBDOC_ARRAY_INSERT = auto()
    SUBDOC_ARRAY_ADD_UNIQUE = auto()
    SUBDOC_COUNTER = auto()
    SUBDOC_MULTI_LOOKUP = auto()
    SUBDOC_MULTI_MUTATION = auto()
    SUBDOC_GET_COUNT = auto()
    SUBDOC_REPLACE_BODY_WITH_XATTR = auto()
    # the connection
    QUIT = auto()
    QUITQ = auto()
    NOOP = auto()
    VERSION = auto()
    VERBOSITY = auto()
    STAT = auto()
    HELLO = auto()
    SASL_LIST_MECHANISMS = auto()
    SASL_AUTH = auto()
    SASL_STEP = auto()
    LIST_BUCKETS = auto()
    SELECT_BUCKET = auto()
    GET_CLUSTER_CONFIG = auto()
    SET_CLUSTER_CONFIG = auto()
    SET_CTRL_TOKEN = auto()
    GET_ERROR_MAP = auto()
    CLUSTERMAP_CHANGED = auto()
    # vbuckets and collections
    SET_VBUCKET = auto()
    GET_VBUCKET = auto()
    DELETE_VBUCKET = auto()
    GET_ALL_SEQNOS = auto()
    GET_FAILOVER_LOG = auto()
    OBSERVE = auto()
    OBSERVE_SEQNO = auto()
    SEQNO_PERSISTENCE = auto()
    STOP_PERSISTENCE = auto()
    START_PERSISTENCE = auto()
    COMPACT = auto()
    SET_MANIFEST = auto()
    GET_MANIFEST = auto()
    GET_COLLECTION_ID = auto()
    GET_SCOPE_ID = auto()

    @property
    def from_server(self) -> bool:
        """Whether the producer (the server side) sends this request."""
        return self in _FROM_SERVER


_FROM_SERVER = frozenset(
    {
        Command.STREAM_START,
        Command.STREAM_END,
        Command.SNAPSHOT_START,
        Command.SNAPSHOT_END,
        Command.SNAPSHOT_MARKER,
        Command.MUTATION,
        Command.DELETION,
        Command.EXPIRATION,
        Command.FLUSH_STREAM,
        Command.SET_STREAM_STATE,
        Command.STREAM_NOOP,
        Command.SYSTEM_EVENT,
        Command.PREPARE,
        Command.COMMIT,
        Command.ABORT,
        Command.SEQNO_ADVANCED,
        Command.OSO_SNAPSHOT,
        Command.CACHE_TRANSFER,
        Command.CACHE_TRANSFER_END,
        Command.REQUEST_ERROR,
        Command.CLUSTERMAP_CHANGED,
    }
)


class Feature(Enum):
    """The features that a client offers in HELLO and a server accepts."""

    DATATYPE = auto()
    TLS = auto()
    TCP_NODELAY = auto()
    MUTATION_SEQNO = auto()
    TCP_DELAY = auto()
    XATTR = auto()
    XERROR = auto()
    SELECT_BUCKET = auto()
    SNAPPY = auto()
    JSON = auto()
    DUPLEX = auto()
    CLUSTERMAP_NOTIFICATION = auto()
    UNORDERED_EXECUTION = auto()
    TRACING = auto()
    ALT_REQUEST = auto()
    SYNC_REPLICATION = auto()
    COLLECTIONS = auto()
    SNAPPY_EVERYWHERE = auto()
    PRESERVE_TTL = auto()
    VATTR = auto()
    CREATE_AS_DELETED = auto()
    DOCUMENT_MACRO = auto()
    REPLACE_BODY_WITH_XATTR = auto()
    UNIT_USAGE = auto()
    NON_BLOCKING_THROTTLE = auto()
    SUBDOC_REPLICA_READ = auto()
    CLUSTERMAP_KNOWN_VERSION = auto()
    DEDUPE_NOT_MY_VBUCKET = auto()
    CLUSTERMAP_BRIEF_NOTIFICATION = auto()


class RequestedState(Enum):
    """Selects the vbuckets of a seqno request: those in one state, or in any but dead."""

    ALIVE = auto()
    ACTIVE = auto()
    REPLICA = auto()
    PENDING = auto()
    DEAD = auto()


class DurabilityLevel(Enum):
    """How many copies a write must reach before it is acknowledged."""

    NONE = auto()
    MAJORITY = auto()
    MAJORITY_AND_PERSIST_ON_MASTER = auto()
    PERSIST_TO_MAJORITY = auto()


class OpenFlag(IntFlag):
    """Flags of Open: the role and the options of a connection."""

    CONSUMER = 0
    PRODUCER = 0x1
    NOTIFIER = 0x2
    INCLUDE_XATTRS = 0x4
    NO_VALUE = 0x8
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_WITH_DATATYPE = 0x40
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Options of a stream; the same bits in Add Stream and Stream Request."""

    NONE = 0
    TAKEOVER = 0x1
    DISK_ONLY = 0x2
    TO_LATEST = 0x4
    NO_VALUE = 0x8
    ACTIVE_ONLY = 0x10
    STRICT_VBUUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED = 0x80
    CACHE_TRANSFER = 0x100


class MarkerFlag(IntFlag):
    """Flags of a snapshot marker: its source, and whether it must be acknowledged."""

    NONE = 0
    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    DUPLICATES = 0x20


class SubdocFlag(IntFlag):
    """Options of a sub-document command as a whole."""

    NONE = 0
    MAKE_DOCUMENT = 0x01
    ADD = 0x02
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE = 0x10
    REPLICA_READ = 0x20


class PathFlag(IntFlag):
    """Options of one path of a sub-document command."""

    NONE = 0
    MAKE_PARENTS = 0x01
    IN_XATTRS = 0x04
    EXPAND_MACROS = 0x10


class WithMetaOption(IntFlag):
    """Options of a write with metadata."""

    NONE = 0
    FORCE = 0x01
    LAST_WRITE_WINS = 0x02  # the sender knows how the bucket resolves conflicts; no effect
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    EXPIRATION = 0x10


class OsoFlag(IntFlag):
    """Start and end of an out-of-seqno-order snapshot."""

    NONE = 0
    START = 1
    END = 2
