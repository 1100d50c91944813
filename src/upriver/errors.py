"""Every error Upriver raises, as one tree, and the statuses a peer can answer with.

    UpriverError
    ├── ProtocolError            the rules of the protocol were broken ...
    │   ├── LocalProtocolError     ... by us: nothing was sent
    │   │   └── EncodeError          a message that its dialect cannot carry
    │   └── RemoteProtocolError    ... by the peer
    │       ├── DecodeError          bytes that break a rule: which field, where, which rule
    │       └── StreamRuleBroken     messages that break a rule of their stream: which, and how
    ├── ConnectionFailed         a node cannot be reached, or refuses or drops the connection
    │   ├── AuthenticationFailed   user and password were refused, or the server failed its proof
    │   ├── BucketNotFound         the bucket does not exist, or access to it is denied
    │   └── NotADcpServer          the address answers with another protocol
    ├── StatusError              the peer refused a request with an error status
    ├── RollbackRequired         the reader has changes that the peer's branch does not have
    ├── StreamEnded              the peer ended a stream before its end seqno
    ├── StoreError               the store cannot do what was asked
    │   ├── StoreRefusal           one operation is refused, with the status to answer
    │   ├── StoreLocked            another process has the store open
    │   ├── StoreTooNew            a later release wrote it
    │   ├── StoreDamaged           what is on disk contradicts itself
    │   ├── StoreFull              there is no room left to write
    │   ├── StoreOutOfFiles        the process may open no more files
    │   ├── StoreNotWritable       the directory or its files may not be written
    │   └── StoreClosed            closed by its owner or after a failed write
    ├── InternalError            a fault of Upriver itself
    ├── ConfigError              a setting that is wrong or contradicts another
    └── MissingExtra             a package of an optional extra is not installed

Attributes carry the facts; the message is made from them. This module imports nothing from the
other packages of Upriver.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

__all__ = [
    "AuthenticationFailed",
    "BucketNotFound",
    "ConfigError",
    "ConnectionFailed",
    "DecodeError",
    "EncodeError",
    "InternalError",
    "LocalProtocolError",
    "MissingExtra",
    "NotADcpServer",
    "ProtocolError",
    "RemoteProtocolError",
    "RollbackRequired",
    "Status",
    "StatusError",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreNotWritable",
    "StoreOutOfFiles",
    "StoreRefusal",
    "StoreTooNew",
    "StreamEnded",
    "StreamRuleBroken",
    "UpriverError",
]


class Status(Enum):
    """What a peer answered, by name. The numbers live in the dialects."""

    SUCCESS = auto()
    NOT_FOUND = auto()
    EXISTS = auto()
    TOO_BIG = auto()
    INVALID = auto()
    NOT_STORED = auto()
    BAD_DELTA = auto()
    NOT_MY_VBUCKET = auto()
    NO_BUCKET = auto()
    LOCKED = auto()
    STREAM_NOT_FOUND = auto()
    OPAQUE_NO_MATCH = auto()
    WOULD_THROTTLE = auto()
    CONFIG_ONLY = auto()
    NOT_LOCKED = auto()
    CAS_VALUE_INVALID = auto()
    AUTH_STALE = auto()
    AUTH_ERROR = auto()
    AUTH_CONTINUE = auto()
    RANGE = auto()
    ROLLBACK = auto()
    NO_ACCESS = auto()
    NOT_INITIALISED = auto()
    ENCRYPTION_KEY_NOT_AVAILABLE = auto()
    CHECKSUM_MISMATCH = auto()
    EXPIRY_OVERFLOW = auto()
    LOCK_EXPIRY_OVERFLOW = auto()
    RATE_LIMITED_NETWORK_INGRESS = auto()
    RATE_LIMITED_NETWORK_EGRESS = auto()
    RATE_LIMITED_MAX_CONNECTIONS = auto()
    RATE_LIMITED_MAX_COMMANDS = auto()
    BUCKET_SIZE_LIMIT_EXCEEDED = auto()
    BUCKET_RESIDENT_RATIO_TOO_LOW = auto()
    BUCKET_DATA_SIZE_TOO_BIG = auto()
    BUCKET_DISK_SPACE_TOO_LOW = auto()
    BUCKET_PAUSED = auto()
    CANCELLED = auto()
    UNKNOWN_FRAME_INFO = auto()
    UNKNOWN_COMMAND = auto()
    NO_MEMORY = auto()
    NOT_SUPPORTED = auto()
    INTERNAL = auto()
    BUSY = auto()
    TEMPORARY_FAILURE = auto()
    XATTR_INVALID = auto()
    UNKNOWN_COLLECTION = auto()
    MANIFEST_NOT_APPLIED = auto()
    MANIFEST_AHEAD = auto()
    UNKNOWN_SCOPE = auto()
    STREAM_ID_INVALID = auto()
    DURABILITY_INVALID_LEVEL = auto()
    DURABILITY_IMPOSSIBLE = auto()
    SYNC_WRITE_IN_PROGRESS = auto()
    SYNC_WRITE_AMBIGUOUS = auto()
    SYNC_WRITE_RECOMMIT_IN_PROGRESS = auto()
    RANGE_SCAN_CANCELLED = auto()
    RANGE_SCAN_MORE = auto()
    RANGE_SCAN_COMPLETE = auto()
    VBUUID_NOT_EQUAL = auto()
    SUBDOC_PATH_NOT_FOUND = auto()
    SUBDOC_PATH_MISMATCH = auto()
    SUBDOC_PATH_INVALID = auto()
    SUBDOC_PATH_TOO_BIG = auto()
    SUBDOC_DOC_TOO_DEEP = auto()
    SUBDOC_VALUE_CANNOT_INSERT = auto()
    SUBDOC_DOC_NOT_JSON = auto()
    SUBDOC_NUMBER_RANGE = auto()
    SUBDOC_DELTA_INVALID = auto()
    SUBDOC_PATH_EXISTS = auto()
    SUBDOC_VALUE_TOO_DEEP = auto()
    SUBDOC_INVALID_COMBINATION = auto()
    SUBDOC_MULTI_PATH_FAILURE = auto()
    SUBDOC_SUCCESS_DELETED = auto()
    SUBDOC_XATTR_INVALID_FLAGS = auto()
    SUBDOC_XATTR_INVALID_KEYS = auto()
    SUBDOC_XATTR_UNKNOWN_MACRO = auto()
    SUBDOC_XATTR_UNKNOWN_VATTR = auto()
    SUBDOC_XATTR_CANNOT_MODIFY_VATTR = auto()
    SUBDOC_MULTI_PATH_FAILURE_DELETED = auto()
    SUBDOC_INVALID_XATTR_ORDER = auto()
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = auto()
    SUBDOC_CAN_ONLY_REVIVE_DELETED = auto()
    SUBDOC_DELETED_CANNOT_HAVE_VALUE = auto()
    SUBDOC_FIELD_NOT_BINARY = auto()
    #: A number that the dialect has no name for; the message carries it as ``status_code``.
    UNRECOGNISED = auto()

    @property
    def retriable(self) -> bool:
        """Whether the same request, sent again unchanged, may succeed later."""
        return self in _RETRIABLE


_RETRIABLE = frozenset(
    {
        Status.NOT_MY_VBUCKET,  # after a new cluster map
        Status.LOCKED,
        Status.WOULD_THROTTLE,
        Status.NOT_INITIALISED,
        Status.RATE_LIMITED_NETWORK_INGRESS,
        Status.RATE_LIMITED_NETWORK_EGRESS,
        Status.RATE_LIMITED_MAX_CONNECTIONS,
        Status.RATE_LIMITED_MAX_COMMANDS,
        Status.BUCKET_PAUSED,
        Status.NO_MEMORY,
        Status.BUSY,
        Status.TEMPORARY_FAILURE,
        Status.MANIFEST_NOT_APPLIED,
        Status.MANIFEST_AHEAD,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS,
    }
)


#: The placeholder for the node's address in the text of a `ConnectionFailed`.
_WHERE = "{where}"


class UpriverError(Exception):
    """The base class of every error that Upriver raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with ``args``; most subclasses have keyword parameters.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[UpriverError], arguments: tuple[Any, ...], fields: dict[str, Any]
) -> UpriverError:
    """Rebuilds an error from its pickled (or copied) arguments and attributes."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class ProtocolError(UpriverError):
    """The rules of the protocol were broken."""


class LocalProtocolError(ProtocolError):
    """The caller asked for something that would break a rule of the protocol; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule."""


class EncodeError(LocalProtocolError):
    """A message that its dialect cannot carry."""

    def __init__(self, *, dialect: str, message: str, field: str, rule: str) -> None:
        super().__init__(f"cannot encode {message} in {dialect}: {field}: {rule}")
        self.dialect = dialect
        self.message = message
        self.field = field
        self.rule = rule


class DecodeError(RemoteProtocolError):
    """Bytes that break a rule of the wire format.

    ``offset`` counts from the first byte of the packet. ``usable`` says whether the connection can
    still be used: true as long as the end of the packet is known. ``status`` is the error status
    that a server should answer if the packet was a request.
    """

    def __init__(
        self,
        *,
        dialect: str,
        packet: str,
        field: str,
        offset: int,
        rule: str,
        usable: bool = True,
        status: Status = Status.INVALID,
    ) -> None:
        verdict = "the connection can go on" if usable else "the connection must be closed"
        super().__init__(f"{dialect} {packet}: {field} at byte {offset}: {rule} ({verdict})")
        self.dialect = dialect
        self.packet = packet
        self.field = field
        self.offset = offset
        self.rule = rule
        self.usable = usable
        self.status = status


class StreamRuleBroken(RemoteProtocolError):
    """A producer's messages break a rule of their stream. ``rule`` is a stable short name."""

    def __init__(self, *, rule: str, vbucket: int | None, detail: str) -> None:
        of = "" if vbucket is None else f" of vbucket {vbucket}"
        super().__init__(f"the stream{of} breaks the rule {rule!r}: {detail}")
        self.rule = rule
        self.vbucket = vbucket
        self.detail = detail


class ConnectionFailed(UpriverError):
    """A node cannot be reached, or it refused or dropped the connection.

    ``problem`` is a sentence without its subject, which is the node ("was lost: ..."), or a whole
    sentence with ``{where}`` for the node. ``hint`` says what to do. ``where`` is the node's
    address, filled in by the code that owns the connection. An error of this class itself may pass
    and is worth a retry; the subclasses are permanent until something is changed.
    """

    def __init__(self, problem: str, hint: str, *, where: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return f"{self.summary}; {self.hint}"

    @property
    def summary(self) -> str:
        """The problem with the node's address, without the hint."""
        where = self.where or "the server"
        if _WHERE in self.problem:
            return self.problem.replace(_WHERE, where)
        return f"{where} {self.problem}"


class AuthenticationFailed(ConnectionFailed):
    """The server refused the user and password, or failed to prove that it knows the password."""


class BucketNotFound(ConnectionFailed):
    """The bucket does not exist, or the user has no access: servers do not always say which."""


class NotADcpServer(ConnectionFailed):
    """The address answers, but not with this protocol."""


class StatusError(UpriverError):
    """The peer refused a request with an error status."""

    def __init__(self, status: Status, *, request: str, context: str = "") -> None:
        tail = f": {context}" if context else ""
        super().__init__(f"{request} was refused with {status.name}{tail}")
        self.status = status
        self.request = request
        self.context = context

    @property
    def retriable(self) -> bool:
        return self.status.retriable


class RollbackRequired(UpriverError):
    """The reader has changes of a vbucket that the peer's branch does not have."""

    def __init__(self, *, vbucket: int, seqno: int, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"vbucket {vbucket} must be rolled back to seqno {seqno}{why}")
        self.vbucket = vbucket
        self.seqno = seqno
        self.reason = reason


class StreamEnded(UpriverError):
    """The peer ended a stream before the end seqno of its request."""

    def __init__(self, *, vbucket: int, reason: str) -> None:
        super().__init__(f"the stream of vbucket {vbucket} ended: {reason}")
        self.vbucket = vbucket
        self.reason = reason


class StoreError(UpriverError):
    """The store cannot carry out an operation, or cannot be opened."""

    #: Whether the change may be stored all the same: nobody knows what a failed write left on disk.
    is_ambiguous = False


class StoreRefusal(StoreError):
    """One operation is refused and nothing was changed; ``status`` is what a server answers."""

    def __init__(self, status: Status, rule: str) -> None:
        super().__init__(f"{status.name}: {rule}")
        self.status = status
        self.rule = rule


class StoreLocked(StoreError):
    """Another process has the store open; ``holder`` says which one, as far as it is known."""

    def __init__(self, *, path: str, holder: str) -> None:
        super().__init__(f"the store {path} is in use by {holder}")
        self.path = path
        self.holder = holder


class StoreTooNew(StoreError):
    """The store has a format of a later release."""

    def __init__(self, *, path: str, found: int, supported: int) -> None:
        super().__init__(f"the store {path} has format {found}; this release knows {supported}")
        self.path = path
        self.found = found
        self.supported = supported


class _StoreProblem(StoreError):
    """Common to the errors that are about the store as a whole."""

    sentence = "the store {path}: {problem}"
    #: Whether clients should retry: the condition may pass without a change to the store.
    is_temporary = False

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(self.sentence.format(path=path, problem=problem))
        self.path = path
        self.problem = problem


class StoreDamaged(_StoreProblem):
    """What is on disk contradicts itself; nothing was opened or changed."""

    sentence = "the store {path} is damaged: {problem}"


class StoreFull(_StoreProblem):
    """There is no room left to write; nothing of the group was acknowledged."""

    sentence = "the store {path} has no room left: {problem}"
    is_temporary = True


class StoreOutOfFiles(_StoreProblem):
    """The process may open no more files; nothing of the group was acknowledged."""

    sentence = "the store {path} cannot open another file: {problem}; raise the limit (ulimit -n)"
    is_temporary = True


class StoreNotWritable(_StoreProblem):
    """The process has no permission to write the directory or one of its files."""

    sentence = "the store {path} cannot be written: {problem}"


class StoreClosed(_StoreProblem):
    """The store was closed, by its owner or after a failed write; it has to be opened again."""

    sentence = "the store {path} is closed: {problem}"
    is_temporary = True


class ConfigError(UpriverError):
    """A setting that is wrong, or that contradicts another one."""


class MissingExtra(UpriverError, ModuleNotFoundError):
    """A package of an optional extra is not installed; ``extra`` names the extra to install."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"this needs upriver[{extra}], and {module} is not installed: "
            f"pip install 'upriver[{extra}]'"
        )
        self.name = module
        self.extra = extra


class InternalError(UpriverError):
    """A fault of Upriver itself, raised in every call that would otherwise wait for ever."""
