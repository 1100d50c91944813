"""Every setting of the source, the sink, the pipelines and the command line, declared once.

Data only. The parser of Spark's options, the flags of the commands and the reference page in the
documentation are generated from these rows.
"""

from __future__ import annotations

from typing import Final

from ..wire.protocol_enums import DIALECT_NAMES
from .setting import Setting, Use, ValueKind

#: Environment variables (of Spark's driver) with the credentials, where no option gives them.
USER_VARIABLE: Final = "UPRIVER_USER"
PASSWORD_VARIABLE: Final = "UPRIVER_PASSWORD"

#: The vbucket groups of a table of documents.
GROUPS: Final = 64

_S = Setting
_K = ValueKind
_MOST: Final = 2**63 - 1

# fmt: off
#: Credentials, and the certificates that are trusted.
ACCESS: Final = (
    _S("user", _K.TEXT, None, f"the user to authenticate as; the default is {USER_VARIABLE}",
       aliases=("username",), flag="--user"),
    _S("password", _K.SECRET, None, "the password itself; prefer one of the next two"),
    _S("passwordFile", _K.FILE, None,
       f"a file (of Spark's driver) with the password; the default is {PASSWORD_VARIABLE}",
       flag="--password-file"),
    _S("passwordEnv", _K.TEXT, PASSWORD_VARIABLE,
       "the environment variable (of Spark's driver) that holds the password"),
    _S("caFile", _K.FILE, None, "the CA certificates that sign the server's (PEM)", flag="--ca"),
    _S("insecure", _K.FLAG, "false", "accept any certificate of the server", flag="--insecure"),
    _S("allowPlain", _K.FLAG, "false",
       "send the password unencrypted, to a server without TLS that offers only PLAIN",
       flag="--allow-plain"),
)

_COMMON: Final = (
    _S("connectionString", _K.TEXT, None,
       "the bucket: couchbase://HOST[:PORT][,...]/BUCKET, or couchbases:// for TLS; "
       "load(...) and save(...) take it too", aliases=("connection", "path")),
    _S("bucket", _K.TEXT, None, "the bucket, where the connection string names none"),
    *ACCESS,
    _S("connectTimeout", _K.DURATION, "10s", "timeout of connecting to a node and authenticating",
       least=0.1, most=3600, flag="--timeout"),
    _S("requestTimeout", _K.DURATION, "30s", "timeout of one response", least=0.1, most=3600),
    _S("retryTimeout", _K.DURATION, "5m",
       "how long a needed node may be unreachable before the task fails", most=86_400),
)

#: Selects a part of a bucket.
SELECTION: Final = (
    _S("collections", _K.LIST, None, "the collections to read, as scope.collection; all by default",
       flag="--collections"),
    _S("scope", _K.TEXT, None, "read all collections of this scope, also ones created later",
       flag="--scope"),
    _S("vbuckets", _K.VBUCKETS, None, "read only these vbuckets, like 0-15,17", flag="--vbuckets"),
)

#: Options of a read.
READ: Final = (
    *_COMMON,
    *SELECTION,
    _S("dialect", _K.CHOICE, "auto",
       "the draft to speak: dcp is that of today; auto finds out which one the server speaks",
       choices=DIALECT_NAMES, flag="--dialect"),
    _S("startingOffsets", _K.TEXT, "earliest",
       "where a new query begins: earliest, latest, a checkpoint as JSON, or file:PATH of one"),
    _S("endingOffsets", _K.TEXT, "latest",
       'where a batch ends: latest, or seqnos by vbucket as JSON, such as {"0": 120}; '
       "a vbucket that is not named is not read", use=Use.BATCH),
    _S("maxOffsetsPerTrigger", _K.NUMBER, None,
       "at most so many changes per micro-batch; the default of pipelines is 1000000",
       least=1, most=_MOST, use=Use.STREAM, flag="--max-batch"),
    _S("maxBytesPerTrigger", _K.SIZE, None, "about so many bytes per micro-batch",
       least=1, most=2**60, use=Use.STREAM),
    _S("minPartitions", _K.NUMBER, None, "at least so many tasks", least=1, most=65_536),
    _S("numPartitions", _K.NUMBER, None, "at most so many tasks", least=1, most=65_536),
    _S("failOnDataLoss", _K.FLAG, "false",
       "fail if the server no longer has the changes after the position (tombstones purged, or "
       "an unknown vbuuid), instead of rolling back to 0 and reading everything again"),
    _S("onRollback", _K.CHOICE, "emit",
       "after a failover that lost changes: emit a rollback row and continue; restate the "
       "documents of the vbucket, for sinks without history such as dcp; or fail",
       choices=("emit", "restate", "fail")),
    _S("noValue", _K.FLAG, "false", "read keys and metadata only"),
    _S("columns", _K.LIST, None,
       "the columns of the frame, such as key,seqno; values do not travel unless value is named"),
    _S("pushFilters", _K.FLAG, "false",
       "let filters of the frame spare reading; needs Spark 4.1 and "
       "spark.sql.python.filterPushdown.enabled, and the frame must be used only once",
       use=Use.BATCH),
    _S("xattrs", _K.FLAG, "false", "add the column xattrs"),
    _S("valueFormat", _K.CHOICE, "binary", "values as bytes, or as text",
       choices=("binary", "string"), flag="--value-format"),
    _S("mode", _K.CHOICE, "PERMISSIVE",
       "for a value that cannot be decompressed or is not UTF-8: PERMISSIVE keeps its bytes, "
       "FAILFAST fails and names the document", choices=("PERMISSIVE", "FAILFAST")),
    _S("columnNameOfCorruptRecord", _K.TEXT, "_corrupt_record",
       "with valueFormat text, the column for the bytes of such values"),
    _S("decompress", _K.FLAG, "true", "decompress Snappy values"),
    _S("compression", _K.FLAG, "false", "let the server send values compressed with Snappy"),
    _S("flowControlBuffer", _K.SIZE, "16m", "unacknowledged bytes per node and task",
       least=1024, most=2**31),
    _S("longPoll", _K.DURATION, "250ms",
       "how long planning waits for changes before an empty batch; a bare number is milliseconds",
       most=60, unit="ms", use=Use.STREAM),
    _S("readAhead", _K.NUMBER, "1000",
       "changes that planning keeps at hand on streams that stay open, so that smaller batches open"
       " none; 0 for no such streams",
       least=0, most=100_000, use=Use.STREAM),
)

#: The columns of a DataFrame that is written, by their role.
COLUMN_ROLES: Final = {
    "key": "the document's key, binary or string",
    "value": "its value: binary, string, or a struct, map or array, which is written as JSON",
    "op": "the operation: mutation, deletion or expiration; without it all rows are mutations",
    "expiry": "when it expires: a timestamp, or seconds since 1970",
    "flags": "its flags",
    "datatype": "its datatype: 1 for JSON, 0 for other bytes, plus 2 if it is Snappy-compressed",
    "cas": "its CAS (see checkCas)",
    "rev": "its revision",
    "scope": "its scope",
    "collection": "its collection",
}

#: Options of a write.
WRITE: Final = (
    *_COMMON,
    _S("collection", _K.TEXT, "_default._default",
       "the collection for rows that name none, as scope.collection"),
    *(_S(f"{role}Column", _K.TEXT, role, f"the column with {meaning}")
      for role, meaning in COLUMN_ROLES.items()),
    _S("checkCas", _K.FLAG, "false", "write only if the document still has the row's CAS"),
    _S("onConflict", _K.CHOICE, "newest",
       "which version of a document stays if rows have a CAS and a revision: the newest, or always "
       "that of the row (source)", choices=("newest", "source")),
    _S("createCollections", _K.FLAG, "false",
       "create collections that rows name and the bucket has not, and pass over rows of "
       "collections that are dropped while they are written"),
    _S("connections", _K.NUMBER, "1", "connections per task and node", least=1, most=16),
    _S("batchSize", _K.NUMBER, "1024", "writes in flight per connection",
       least=1, most=65_536),
)

#: Settings of every pipeline, besides the options of the source.
PIPELINE: Final = (
    _S("once", _K.FLAG, "false", "read what is there now, then stop", flag="--once"),
    _S("trigger", _K.DURATION, "0s", "the least time between the starts of two batches",
       most=86_400, flag="--trigger"),
    _S("compactEvery", _K.NUMBER, "20",
       "compact small files every so many batches; 0 for never", most=10**9,
       flag="--compact-every"),
    _S("keepVersions", _K.DURATION, "24h",
       "how long older versions of the table are kept, for its readers and to undo rollbacks; "
       "at most 1000 of them; a bare number is hours", most=10**9, unit="h",
       flag="--keep-versions"),
    _S("keepVersionsSize", _K.SIZE, "10g",
       "bytes that only older versions may need; the oldest are deleted first", most=2**60,
       flag="--keep-versions-size"),
    _S("taskMemory", _K.SIZE, "256m",
       "about so many bytes that a task needs beside its process and one document",
       least=32 * 2**20, most=2**40, flag="--task-memory"),
    _S("allowChange", _K.FLAG, "false",
       "let a table that is there become what is asked for: of other collections, with another "
       "schema, or with deleted documents",
       flag="--allow-change"),
    _S("storageOptions", _K.SECRET, None,
       "options of an object store as deltalake takes them, as a JSON object; better set "
       "variables such as AWS_ACCESS_KEY_ID in the driver's environment"),
)
CHANGELOG: Final = PIPELINE
MIRROR: Final = (
    *PIPELINE,
    next(setting for setting in READ if setting.name == "valueFormat"),
    _S("valueSchema", _K.TEXT, None,
       "parse values into columns: a schema such as 'name string, age int', or infer, which "
       "follows the documents; members that do not fit go to the column _rescued and to the dead "
       "letters", flag="--schema", by_collection=True),
    _S("rename", _K.TEXT, None,
       "take columns of the schema from members of other names or inside of others, such as "
       "who=name,city=address.city", flag="--rename", by_collection=True),
    _S("keyFormat", _K.CHOICE, "binary", "whether keys are bytes or text",
       choices=("binary", "string"), flag="--key-format"),
    _S("keyPattern", _K.TEXT, None,
       "make columns of the parts of keys, such as {kind}::{number}", flag="--key-pattern",
       by_collection=True),
    _S("columnTypes", _K.COLUMNS, None,
       "with the schema infer, give members types that documents do not change, such as "
       "'price decimal(18,2)'", flag="--column"),
    _S("inferDepth", _K.NUMBER, "10",
       "with the schema infer, how many levels of objects and arrays get types; what lies deeper "
       "is text, and with 0 all of them are", most=50, flag="--infer-depth"),
    _S("widenToText", _K.FLAG, "false",
       "with the schema infer, let a column whose documents disagree become text",
       flag="--widen-to-text"),
    _S("keepDeleted", _K.FLAG, "false", "keep deleted documents as marked rows",
       flag="--keep-deleted"),
    _S("tablePerCollection", _K.FLAG, "false",
       "a table for each collection, TABLE/SCOPE.COLLECTION", flag="--table-per-collection"),
    _S("groups", _K.NUMBER, str(GROUPS),
       "the number of vbucket groups into which files are divided",
       least=1, most=1024, flag="--groups"),
    _S("mergeOnRead", _K.FLAG, "true",
       "mark replaced rows in deletion vectors; false rewrites their files, for readers that do "
       "not know vectors", flag="--merge-on-read"),
)
#: Options of the format ``upriver-table``.
TABLE_READ: Final = (
    _S("path", _K.TEXT, None, "the table; load(...) takes it too"),
    _S("versionAsOf", _K.NUMBER, None, "an older version; the newest by default", most=_MOST),
    _S("timestampAsOf", _K.TEXT, None,
       "the version that was the newest then: ISO 8601 (UTC without a zone), or how long ago, "
       "such as 2h"),
    _S("columns", _K.LIST, None, "the columns to read, such as key,seqno; all by default"),
    _S("readChangeFeed", _K.FLAG, "false",
       "what is different between two versions, instead of rows"),
    _S("startingVersion", _K.NUMBER, None, "the first of these versions", most=_MOST),
    _S("endingVersion", _K.NUMBER, None, "the second of them; the newest by default", most=_MOST),
    next(setting for setting in PIPELINE if setting.name == "storageOptions"),
    _S("pushFilters", _K.FLAG, "false",
       "let filters of the frame leave out files; needs Spark 4.1 and "
       "spark.sql.python.filterPushdown.enabled, and the frame must be used only once"),
)
# fmt: on
#: Versions cannot be read again with wider columns, and say themselves how they ended.
HISTORY: Final = tuple(one for one in MIRROR if one.name not in ("widenToText", "keepDeleted"))


def named(*names: str) -> tuple[Setting, ...]:
    """The settings with these names, in this order."""
    rows = {setting.name: setting for setting in (*READ, *WRITE, *CHANGELOG, *MIRROR)}
    return tuple(rows[name] for name in names)
