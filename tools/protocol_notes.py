"""What each command of the change stream is for, who sends it and which rules it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from upriver.wire.protocol_enums import Command as C

__all__ = ["NOTES", "Note"]


@dataclass(frozen=True, slots=True)
class Note:
    """The prose of one page."""

    what: str
    sender: str
    answer: str
    rules: tuple[str, ...] = ()


_CONSUMER: Final = "the consumer"
_PRODUCER: Final = "the producer, on an open stream"
_SILENT: Final = "It is not answered."

NOTES: Final[dict[C, Note]] = {
    C.OPEN: Note(
        "Opens a connection for streams and gives it a name. The name appears in statistics and on "
        "the dashboard. Couchbase closes an older connection of the same name.",
        _CONSUMER,
        "The producer answers with an empty response, or closes the connection.",
        (
            (
                "The flag `producer` asks the receiver to be the producer, which is what a reader "
                "wants."
            ),
            (
                "It comes once, before any stream. In drafts 002 and 000 the first Stream Request "
                "takes its place."
            ),
        ),
    ),
    C.ADD_STREAM: Note(
        "Tells a node to become the consumer of one vbucket: it then sends a Stream Request on "
        "the same "
        "connection. Cluster managers use it to set up replication and takeovers.",
        "a cluster manager, through the connection of the other node",
        "The node answers when its own Stream Request was answered, with the opaque of the stream.",
    ),
    C.CLOSE_STREAM: Note(
        "Ends the stream of one vbucket before its end seqno.",
        _CONSUMER,
        "The producer answers, and sends a Stream End if the consumer has asked for that by "
        "Control.",
        (
            "A vbucket without a stream is answered with NOT_FOUND.",
            (
                "An error status in the answer to any message of a stream ends that stream too, "
                "and nothing but that stream: the way of the drafts that lack this command."
            ),
        ),
    ),
    C.STREAM_REQUEST: Note(
        "Asks for the changes of one vbucket after a start seqno. It carries the position of the "
        "consumer: vbuuid, start seqno and the snapshot in which that lies.",
        _CONSUMER,
        "The producer accepts with its failover log, or answers ROLLBACK with the seqno to which "
        "the "
        "consumer must go back, or refuses: NOT_MY_VBUCKET, RANGE, EXISTS, UNKNOWN_COLLECTION.",
        (
            "A start of 0 with a vbuuid of 0 is a consumer that has nothing.",
            "The opaque of the request marks every message of the stream.",
            (
                "Start is at most end; the snapshot contains the start. The end "
                "`0xffffffffffffffff` is never reached."
            ),
            (
                "In DCP the value may hold a JSON filter: collections, a scope, a manifest uid, a "
                "stream id."
            ),
            (
                "[Snapshots and failover logs](../../explanation/snapshots-and-failover-logs.md) "
                "says when a rollback is needed."
            ),
        ),
    ),
    C.FAILOVER_LOG: Note(
        "Asks for the branches of a vbucket's history: pairs of a vbuuid and the seqno at which it "
        "began, newest first.",
        _CONSUMER,
        "The producer answers with the log.",
        (
            (
                "A consumer needs no stream for it, and may ask before Open; release 3.0.2 "
                "closes the connection then."
            ),
        ),
    ),
    C.STREAM_START: Note(
        "Says that a stream begins, in the drafts in which the response to a Stream Request does "
        "not.",
        _PRODUCER,
        _SILENT,
    ),
    C.STREAM_END: Note(
        "Ends a stream, with the reason. Nothing follows on the stream.",
        _PRODUCER,
        _SILENT,
        (
            "The reason OK means that the end seqno was reached.",
            (
                "After STATE_CHANGED the consumer asks for a new cluster map; after TOO_SLOW it "
                "may come back; after ROLLBACK it requests the stream again and is told where to "
                "go."
            ),
            "The number of a reason differs between drafts: see the tables.",
        ),
    ),
    C.SNAPSHOT_START: Note(
        "Begins a snapshot, in the drafts that mark both of its edges.", _PRODUCER, _SILENT
    ),
    C.SNAPSHOT_END: Note(
        "Ends a snapshot: the consumer's data is consistent now.", _PRODUCER, _SILENT
    ),
    C.SNAPSHOT_MARKER: Note(
        "Begins a snapshot: a range of seqnos in which every key occurs at most once. The "
        "consumer's "
        "data is consistent at its end only.",
        _PRODUCER,
        "It is answered if its flag `ack` is set, which a replica that is to take over sees.",
        (
            "In draft 001 it carries no seqnos.",
            (
                "Markers of version 2.0 and 2.2 have their fields in the value; they tell replicas "
                "which prepared writes are complete, and up to where deletions were purged."
            ),
            (
                "A marker without a change after it is not a position to save: the change that it "
                "announces may never come."
            ),
        ),
    ),
    C.MUTATION: Note(
        "A document was written: its key, value and metadata.",
        _PRODUCER,
        _SILENT,
        (
            (
                "Seqnos grow within a stream and may leave gaps: of several versions only the "
                "newest is sent."
            ),
            (
                "The CAS of Couchbase and of Upriver is the time of the write in nanoseconds; "
                "its low 16 bits are a counter."
            ),
            (
                "The datatype says whether the value is JSON, compressed with Snappy, or begins "
                "with extended attributes."
            ),
        ),
    ),
    C.DELETION: Note(
        "A document was deleted.",
        _PRODUCER,
        _SILENT,
        (
            "With the delete time if the consumer has asked for that in Open.",
            "The value is empty, or has extended attributes of the system.",
        ),
    ),
    C.EXPIRATION: Note(
        "A document has expired.",
        _PRODUCER,
        _SILENT,
        ("Sent as such if the consumer has asked for it by Control, otherwise as a deletion.",),
    ),
    C.FLUSH_STREAM: Note(
        "The vbucket was emptied: the consumer forgets everything that it has of it.",
        _PRODUCER,
        _SILENT,
        ("Today's servers do not send it: a flush shows as a new vbuuid.",),
    ),
    C.SET_STREAM_STATE: Note(
        "Changes the state of the consumer's vbucket during a takeover: first to pending, then to "
        "active.",
        "the producer that gives a vbucket away",
        "From DCP on the consumer answers when the state has changed; drafts do not.",
        ("Replica and pending have each other's numbers in the drafts.",),
    ),
    C.STREAM_NOOP: Note(
        "Shows that the connection lives. A consumer that does not answer is disconnected.",
        "the producer, at the interval that the consumer set by Control",
        "The consumer answers with the same opaque.",
    ),
    C.BUFFER_ACK: Note(
        "Says that the consumer has processed so many bytes, which opens the flow-control window "
        "again.",
        _CONSUMER,
        _SILENT,
        (
            (
                "The window is set by Control `connection_buffer_size`. The producer stops when so "
                "many bytes are not acknowledged."
            ),
            (
                "Every message of a stream counts with its whole size, markers included; noops and "
                "responses do not. A prepare counts two bytes more than it has."
            ),
        ),
    ),
    C.CONTROL: Note(
        "Sets an option of the connection, by name and value: flow control, noops, expirations, "
        "stream ids and others.",
        _CONSUMER,
        "The producer answers SUCCESS, or INVALID for an option that it does not know.",
    ),
    C.SYSTEM_EVENT: Note(
        "A scope or collection was created, changed or dropped. It has a seqno like a change.",
        _PRODUCER,
        _SILENT,
        (
            (
                "Sent on streams with collections. Events 0, 1, 3 and 4 have names here; others "
                "come as they are."
            ),
            "The value holds the manifest uid and the ids; the key is the name.",
        ),
    ),
    C.PREPARE: Note(
        "A durable write that is not committed yet. Only replicas get it.",
        _PRODUCER,
        _SILENT,
        ("[Durable writes](../../explanation/durable-writes.md) says how a majority decides.",),
    ),
    C.SEQNO_ACKNOWLEDGED: Note(
        "A replica has everything up to a prepare, in memory or on disk as its level asks.",
        "a replica",
        _SILENT,
    ),
    C.COMMIT: Note("A prepared write is committed.", _PRODUCER, _SILENT),
    C.ABORT: Note("A prepared write is given up: nobody has seen it.", _PRODUCER, _SILENT),
    C.SEQNO_ADVANCED: Note(
        "The end of a snapshot lies behind the last change that the consumer's filter lets "
        "through. "
        "The consumer's position moves there.",
        _PRODUCER,
        _SILENT,
    ),
    C.OSO_SNAPSHOT: Note(
        "Begins or ends a snapshot that is out of seqno order: changes come by key, which is "
        "faster "
        "from disk.",
        _PRODUCER,
        _SILENT,
        (
            (
                "Only if the consumer has allowed it by Control. A position inside of it cannot be "
                "resumed."
            ),
        ),
    ),
    C.CACHE_TRANSFER: Note(
        "Documents from the memory of another node, so that a new node begins with a warm cache.",
        _PRODUCER,
        _SILENT,
        ("Upriver decodes it and neither asks for it nor sends it.",),
    ),
    C.CACHE_TRANSFER_END: Note("The transfer of a cache is complete.", _PRODUCER, _SILENT),
    C.REQUEST_ERROR: Note(
        "A request is refused, in the draft without statuses. It has a text.",
        "either side",
        _SILENT,
    ),
    C.RESPONSE_ERROR: Note(
        "A packet could not be read, in the draft without statuses: a request by the producer, a "
        "response or a message of a stream by the consumer. It has a text.",
        "either side",
        _SILENT,
        (
            "A producer ends the stream whose request id it carries.",
            "A consumer that sends it gives that stream up, and requests it again.",
        ),
    ),
}
