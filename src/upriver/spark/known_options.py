"""Every option of the source and of the sink, with its help: what the reference page lists.

Data only; what an option comes to is decided elsewhere.
"""

from __future__ import annotations

from typing import Final

from .option_table import Kind, Option, Use

__all__ = [
    "COLUMN_ROLES",
    "PASSWORD_VARIABLE",
    "READ_OPTIONS",
    "USER_VARIABLE",
    "WRITE_OPTIONS",
]

#: Who we are, where no option says so: variables of the driver's environment.
USER_VARIABLE: Final = "UPRIVER_USER"
PASSWORD_VARIABLE: Final = "UPRIVER_PASSWORD"

_COMMON: Final = (
    Option(
        "connectionString",
        Kind.TEXT,
        None,
        "the bucket: couchbase://HOST[:PORT][,...]/BUCKET, or couchbases:// for TLS; "
        "load(...) and save(...) take it too",
        aliases=("connection", "path"),
    ),
    Option("bucket", Kind.TEXT, None, "the bucket, where the connection string names none"),
    Option(
        "user",
        Kind.TEXT,
        None,
        f"who we are, where the server has users; else {USER_VARIABLE} of the driver",
        aliases=("username",),
    ),
    Option("password", Kind.SECRET, None, "the password itself; better use one of the next two"),
    Option("passwordFile", Kind.TEXT, None, "a file of the driver that holds the password"),
    Option(
        "passwordEnv",
        Kind.TEXT,
        PASSWORD_VARIABLE,
        "the environment variable of the driver that holds the password",
    ),
    Option("caFile", Kind.TEXT, None, "certificates that the server's must come from (PEM)"),
    Option("insecure", Kind.FLAG, "false", "believe any certificate of the server"),
    Option(
        "connectTimeout",
        Kind.DURATION,
        "10s",
        "how long reaching a node and being let in may take",
        least=0.1,
        most=3600,
    ),
    Option(
        "requestTimeout",
        Kind.DURATION,
        "30s",
        "how long one answer may take",
        least=0.1,
        most=3600,
    ),
    Option(
        "retryTimeout",
        Kind.DURATION,
        "5m",
        "how long a node that is needed may be gone before the task fails",
        most=86_400,
    ),
)

#: What can be said about a read.
READ_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    Option("collections", Kind.LIST, None, "what to read, as scope.collection; all if not given"),
    Option("scope", Kind.TEXT, None, "read all collections of this scope, later ones too"),
    Option("vbuckets", Kind.LIST, None, "read these only, such as 0-15,17"),
    Option(
        "startingOffsets",
        Kind.TEXT,
        "earliest",
        "where a new query begins: earliest, latest, a checkpoint as JSON, or file:PATH of one",
    ),
    Option(
        "endingOffsets",
        Kind.TEXT,
        "latest",
        'where a batch ends: latest, or seqnos by vbucket as JSON, such as {"0": 120}; '
        "a vbucket that is not named is not read",
        use=Use.BATCH,
    ),
    Option(
        "maxOffsetsPerTrigger",
        Kind.NUMBER,
        None,
        "at most so many changes in a micro-batch",
        least=1,
        most=2**63 - 1,
        use=Use.STREAM,
    ),
    Option(
        "maxBytesPerTrigger",
        Kind.SIZE,
        None,
        "about so many bytes in a micro-batch",
        least=1,
        most=2**60,
        use=Use.STREAM,
    ),
    Option("minPartitions", Kind.NUMBER, None, "at least so many tasks", least=1, most=65_536),
    Option("numPartitions", Kind.NUMBER, None, "at most so many tasks", least=1, most=65_536),
    Option(
        "failOnDataLoss",
        Kind.FLAG,
        "false",
        "fail where the server no longer has what follows the position (purged, or a branch that "
        "it does not know), instead of a rollback to 0 and reading all again",
    ),
    Option(
        "onRollback",
        Kind.CHOICE,
        "emit",
        "after a failover that lost changes: emit a rollback row and read on, or fail",
        choices=("emit", "fail"),
    ),
    Option("noValue", Kind.FLAG, "false", "read keys and metadata only"),
    Option("xattrs", Kind.FLAG, "false", "add the column xattrs"),
    Option(
        "valueFormat",
        Kind.CHOICE,
        "binary",
        "values as bytes, or as text",
        choices=("binary", "string"),
    ),
    Option(
        "mode",
        Kind.CHOICE,
        "PERMISSIVE",
        "what becomes of a value that cannot be unpacked or is no text: PERMISSIVE keeps its "
        "bytes, FAILFAST fails and names the document",
        choices=("PERMISSIVE", "FAILFAST"),
    ),
    Option(
        "columnNameOfCorruptRecord",
        Kind.TEXT,
        "_corrupt_record",
        "the column that keeps these bytes when values are text",
    ),
    Option("decompress", Kind.FLAG, "true", "unpack values that are compressed"),
    Option("compression", Kind.FLAG, "false", "let values travel compressed"),
    Option(
        "flowControlBuffer",
        Kind.SIZE,
        "16m",
        "bytes that one node may have under way to a task",
        least=1024,
        most=2**31,
    ),
    Option(
        "longPoll",
        Kind.DURATION,
        "250ms",
        "how long to wait for changes before an empty answer; a bare number is milliseconds",
        most=60,
        unit="ms",
        use=Use.STREAM,
    ),
)

#: The columns of a frame that is written, by their role.
COLUMN_ROLES: Final = {
    "key": "the document's key, binary or string",
    "value": "its value, binary or string",
    "op": "what to do: mutation, deletion or expiration; without it all rows are mutations",
    "expiry": "when it expires: a timestamp, or seconds since 1970",
    "flags": "its flags",
    "cas": "its CAS (see checkCas)",
    "rev": "its revision",
    "scope": "its scope",
    "collection": "its collection",
}

#: What can be said about a write.
WRITE_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    Option(
        "collection",
        Kind.TEXT,
        "_default._default",
        "where documents go whose row names no collection, as scope.collection",
    ),
    *(
        Option(f"{role}Column", Kind.TEXT, role, f"the column with {meaning}")
        for role, meaning in COLUMN_ROLES.items()
    ),
    Option("checkCas", Kind.FLAG, "false", "write only where the document still has the row's CAS"),
    Option("connections", Kind.NUMBER, "1", "connections of a task to a node", least=1, most=16),
    Option(
        "batchSize",
        Kind.NUMBER,
        "1024",
        "writes that may be under way at once on a connection",
        least=1,
        most=65_536,
    ),
)
