"""The log of a Delta table: read here, and written here, one file for each commit.

A commit is ``_delta_log/N.json``, created only if nobody else has created it. `deltalake` cannot
commit deletion vectors, so it is not asked to. Nothing here knows what rows mean.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self
from urllib.parse import unquote

import pyarrow as pa

from ... import _entropy
from ...errors import ConfigError, UpriverError
from ...files.storage import Storage
from . import log_checkpoints as checkpoints
from . import schema_json
from .deletion_vectors import path_of

LOG: Final = "_delta_log"
#: The member of a commit's ``commitInfo`` that holds the pipeline's state.
STATE: Final = "upriver"
#: What commits of ours have as ``engineInfo``.
ENGINE: Final = "upriver"
#: The operation of a commit after which the rows are a pipeline's again, whoever changed them.
REPAIR: Final = "UPRIVER REPAIR"
#: What this writer understands of Delta's table features.
_KNOWN_FEATURES: Final = frozenset(
    {"deletionVectors", "appendOnly", "invariants", "timestampNtz", "vacuumProtocolCheck"}
)
_COMMIT: Final = re.compile(rf"{LOG}/(\d{{20}})\.json")
_CHECKPOINT: Final = re.compile(
    rf"{LOG}/(\d{{20}})\.checkpoint(?:\.(\d{{10}})\.(\d{{10}}))?\.parquet"
)
#: Commits of others that are looked through for the newest state of ours.
_LOOKS_BACK: Final = 10_000


class LogMovedOn(UpriverError):
    """The log has gone on, and was cleaned up, while a writer stood still."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows that is part of a table, or will be."""

    #: Relative to the table, as the log spells it.
    name: str
    size: int
    rows: int
    #: JSON, as the log has it.
    stats: str = ""
    modified: int = 0
    vector: Mapping[str, Any] | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)
    #: The least and the greatest `vbucket_group` of its rows, if that is known.
    groups: tuple[int, int] | None = None
    #: Whether all its rows are versions of documents that have ended: no change concerns them.
    closed: bool = False

    @property
    def path(self) -> str:
        return unquote(self.name)

    @property
    def paths(self) -> list[str]:
        """The file and that of its vector."""
        vector = path_of(self.vector) if self.vector else None
        return [self.path, vector] if vector else [self.path]

    @property
    def statistics(self) -> dict[str, Any]:
        """``stats``, decoded."""
        decoded: dict[str, Any] = json.loads(self.stats or "{}")
        return decoded

    @property
    def dead(self) -> int:
        return int(self.vector["cardinality"]) if self.vector else 0

    @property
    def live(self) -> int:
        return self.rows - self.dead

    def may_have(self, group: int) -> bool:
        return self.groups is None or self.groups[0] <= group <= self.groups[1]

    @classmethod
    def of_add(cls, add: Mapping[str, Any]) -> Self:
        stats = json.loads(add.get("stats") or "{}")
        low = (stats.get("minValues") or {}).get("vbucket_group")
        open_rows = (stats.get("nullCount") or {}).get("_valid_to_seqno")
        high = (stats.get("maxValues") or {}).get("vbucket_group")
        if "numRecords" not in stats:
            raise ConfigError(f"the file {add['path']} has no number of rows in the table's log")
        return cls(
            name=add["path"],
            size=add["size"],
            rows=stats["numRecords"],
            stats=add.get("stats") or "",
            modified=add.get("modificationTime") or 0,
            vector=add.get("deletionVector"),
            partition=dict(add.get("partitionValues") or {}),
            groups=(low, high) if low is not None and high is not None else None,
            closed=open_rows == 0,
        )

    def add_action(self, *, data_change: bool = True) -> dict[str, Any]:
        members = {
            "path": self.name,
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": self.modified,
            "dataChange": data_change,
            "stats": self.stats,
        }
        if self.vector is not None:
            members["deletionVector"] = dict(self.vector)
        return {"add": members}

    def remove_action(self, *, data_change: bool = True) -> dict[str, Any]:
        members = {
            "path": self.name,
            "deletionTimestamp": int(time.time() * 1000),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.partition),
            "size": self.size,
        }
        if self.vector is not None:
            members["deletionVector"] = dict(self.vector)
        return {"remove": members}

    def with_vector(self, vector: Mapping[str, Any]) -> DataFile:
        """The same file with other rows marked as gone."""
        stats = {**self.statistics, "tightBounds": False}
        return replace(self, vector=vector, stats=json.dumps(stats, separators=(",", ":")))


@dataclass(slots=True)
class TableSnapshot:
    """A table as its commits up to one make it."""

    version: int = -1
    files: dict[str, DataFile] = field(default_factory=dict)
    #: The newest number of each application.
    transactions: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, str] = field(default_factory=dict)
    schema: str = ""
    #: The newest state of ours.
    state: str | None = None
    #: Versions in which others have changed rows, and what they called it.
    strangers: list[tuple[int, str]] = field(default_factory=list)
    _ours: set[tuple[Any, ...]] = field(default_factory=set)
    commits_since_checkpoint: int = 0
    #: What the newest checkpoint must say besides files.
    _meta: dict[str, Any] = field(default_factory=dict)
    _protocol: dict[str, Any] = field(default_factory=dict)
    #: What was removed since the newest checkpoint that was read or written, by version.
    _removals: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)

    def apply(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        info: Mapping[str, Any] = next(
            (action["commitInfo"] for action in actions if action.get("commitInfo")), {}
        )
        ours = info.get("engineInfo") == ENGINE
        if not ours and not self.strangers:
            self._ours = self._contents()
        changes = False
        for action in actions:
            changes = self._apply(action) or changes
            if action.get("remove"):
                self._removals.append((version, action))
        self.version = version
        self.commits_since_checkpoint += 1
        if STATE in info:
            self.state = info[STATE]
        if ours and info.get("operation") == REPAIR:
            self.strangers.clear()
        if not ours and changes:
            name = f"{info.get('operation', '?')} by {info.get('engineInfo', 'another program')}"
            self.strangers.append((version, name))
            if self._contents() == self._ours:  # what was done is undone
                self.strangers.clear()

    def _contents(self) -> set[tuple[Any, ...]]:
        return {(name, _vector_id(file.vector)) for name, file in self.files.items()}

    def _apply(self, action: Mapping[str, Any]) -> bool:
        """Takes an action in; says whether it changes rows."""
        if add := action.get("add"):
            self.files[add["path"]] = DataFile.of_add(add)
            return bool(add.get("dataChange", True))
        if remove := action.get("remove"):
            # an add of the same file with another vector may stand before this in the commit
            if self.has(remove):
                del self.files[remove["path"]]
            return bool(remove.get("dataChange", True))
        if txn := action.get("txn"):
            self.transactions[txn["appId"]] = txn["version"]
        elif meta := action.get("metaData"):
            self._meta = dict(meta)
            self.configuration = dict(meta.get("configuration") or {})
            self.schema = meta["schemaString"]
        elif protocol := action.get("protocol"):
            _check_features(protocol)
            self._protocol = dict(protocol)
        return False

    def actions(self) -> list[dict[str, Any]]:
        """Actions that make this table of nothing."""
        transactions = self.transactions.items()
        return [
            {"protocol": self._protocol},
            {"metaData": self._meta},
            *({"txn": {"appId": name, "version": number}} for name, number in transactions),
            *(file.add_action(data_change=False) for file in self.files.values()),
        ]

    def has(self, remove: Mapping[str, Any]) -> bool:
        """Whether the file that an action removes is there, with the vector that it names."""
        held = self.files.get(remove["path"])
        return held is not None and _vector_id(held.vector) == _vector_id(
            remove.get("deletionVector")
        )

    def changed_metadata(
        self, properties: Mapping[str, str], schema: str | None = None
    ) -> list[dict[str, Any]]:
        """The action for other properties or another schema (JSON); none if they are the same."""
        configuration = {**self.configuration, **properties}
        schema = self.schema if schema is None else schema
        if configuration == self.configuration and schema == self.schema:
            return []
        meta = {name: value for name, value in self._meta.items() if value is not None}
        return [{"metaData": meta | {"configuration": configuration, "schemaString": schema}}]

    @property
    def rows(self) -> int:
        return sum(file.live for file in self.files.values())

    def arrow_schema(self) -> pa.Schema:
        return schema_json.to_arrow(self.schema)


def create_actions(
    schema: str, configuration: Mapping[str, str], *, vectors: bool
) -> list[dict[str, Any]]:
    """What the first commit of a table says of it; ``schema`` is JSON."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if vectors:
        features = ["deletionVectors"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        configuration = {**configuration, "delta.enableDeletionVectors": "true"}
    meta = {
        "id": str(_entropy.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(configuration),
        "createdTime": int(time.time() * 1000),
    }
    return [{"protocol": protocol}, {"metaData": meta}]


def commit(
    storage: Storage,
    version: int,
    actions: Iterable[Mapping[str, Any]],
    *,
    operation: str,
    state: str | None = None,
) -> list[dict[str, Any]] | None:
    """Makes a version of the table; None if that version exists already, else its actions.

    A writer that stood still may find that the version was made, and that its commit has been
    cleaned up since. LogMovedOn then, and nothing was committed.
    """
    info: dict[str, Any] = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": {},
        "engineInfo": ENGINE,
        # distinguishes our own commit from another one: `Storage.create` needs that
        "txnId": _entropy.uuid4().hex,
    }
    if state is not None:
        info[STATE] = state
    written: list[dict[str, Any]] = [{"commitInfo": info}, *map(dict, actions)]
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in written).encode()
    path = _commit_path(version)
    if not storage.create(path, text):
        return None
    if version and not storage.exists(_commit_path(version - 1)):
        commits, summed_up = log_versions(storage)
        if (newest := max([*commits, *summed_up])) > version:
            storage.delete([path])
            raise LogMovedOn(
                f"{storage.url} has version {newest} already, and its log no longer has the one "
                f"before {version}, which was to be made: this process stood still for long; "
                "nothing was committed; start the pipeline again if no other one runs"
            )
    return written


def _commit_path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def read_commit(storage: Storage, version: int) -> list[dict[str, Any]] | None:
    """The actions of a commit; None if there is none."""
    try:
        text = storage.read(_commit_path(version))
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def log_versions(storage: Storage) -> tuple[list[int], dict[int, list[str]]]:
    """The versions that have a commit file, and the files of complete checkpoints by version."""
    versions: list[int] = []
    parts: dict[int, list[str]] = {}
    wanted: dict[int, int] = {}
    for file in storage.files(LOG):
        if found := _COMMIT.fullmatch(file.path):
            versions.append(int(found[1]))
        elif found := _CHECKPOINT.fullmatch(file.path):
            parts.setdefault(int(found[1]), []).append(file.path)
            wanted[int(found[1])] = int(found[3] or 1)
    whole = {v: sorted(paths) for v, paths in parts.items() if len(paths) == wanted[v]}
    return sorted(versions), whole


def read_snapshot(storage: Storage, version: int | None = None) -> TableSnapshot | None:
    """The table at a version, or as it is now; None if there is no table."""
    versions, summed_up = log_versions(storage)
    if not versions and not summed_up:
        return None
    newest = max([*versions, *summed_up])
    until = newest if version is None else version
    if until > newest:
        raise ConfigError(f"{storage.url} has no version {until}: its newest is {newest}")
    start = max((v for v in summed_up if v <= until), default=-1)
    snapshot = TableSnapshot()
    if start >= 0:
        for path in summed_up[start]:
            for action in checkpoints.read_actions(storage, path):
                snapshot._apply(action)
        snapshot.version = start
    present = set(versions)
    for number in range(start + 1, until + 1):
        actions = read_commit(storage, number) if number in present else None
        if actions is None:
            raise ConfigError(
                f"{storage.url} has no version {until} any more: commit {number} is gone"
            )
        snapshot.apply(number, actions)
    snapshot.commits_since_checkpoint = until - start if start >= 0 else until + 1
    if snapshot.state is None:
        _find_state(storage, snapshot, start, present)
    return snapshot


def _find_state(storage: Storage, snapshot: TableSnapshot, newest: int, present: set[int]) -> None:
    """The state may be in a commit from before the checkpoint: in the newest of ours."""
    for version in range(newest, max(-1, newest - _LOOKS_BACK), -1):
        actions = read_commit(storage, version) if version in present else None
        if actions is None:
            return
        info: dict[str, Any] = next((o["commitInfo"] for o in actions if "commitInfo" in o), {})
        if info.get("engineInfo") == ENGINE:
            snapshot.state = info.get(STATE)
            return
        if any(_changes_rows(action) for action in actions):
            snapshot.strangers.insert(0, (version, str(info.get("operation", "?"))))


def _changes_rows(action: Mapping[str, Any]) -> bool:
    found = action.get("add") or action.get("remove")
    return bool(found and found.get("dataChange", True))


def catch_up(storage: Storage, snapshot: TableSnapshot) -> bool:
    """Takes commits in that others have made; says whether there were any."""
    before = snapshot.version
    while (actions := read_commit(storage, snapshot.version + 1)) is not None:
        snapshot.apply(snapshot.version + 1, actions)
    return snapshot.version > before


def write_checkpoint(storage: Storage, snapshot: TableSnapshot, oldest: int) -> None:
    """Sums up the log, for a table whose versions from ``oldest`` on are kept."""
    _, before = log_versions(storage)
    last = max((version for version in before if version < snapshot.version), default=-1)
    checkpoints.write(
        storage,
        LOG,
        snapshot.version,
        snapshot.actions(),
        [action for version, action in snapshot._removals if version > last],
        before=before.get(last, ()),
        since=_commit_time(storage, oldest),
    )
    snapshot._removals.clear()
    snapshot.commits_since_checkpoint = 0


def _commit_time(storage: Storage, version: int) -> float:
    """Seconds since 1970; 0 if that is not known."""
    for action in read_commit(storage, version) or ():
        if info := action.get("commitInfo"):
            return float(info.get("timestamp") or 0) / 1000
    return 0.0


def version_at(storage: Storage, moment: datetime) -> int:
    """The version that was the newest at a moment."""
    versions, _ = log_versions(storage)
    if not versions:
        raise ConfigError(f"there is no Delta table at {storage.url}")
    older = bisect_right(versions, moment.timestamp(), key=partial(_commit_time, storage))
    if not older:
        oldest = datetime.fromtimestamp(_commit_time(storage, versions[0]), UTC)
        raise ConfigError(
            f"{storage.url} has no version of {moment:%Y-%m-%dT%H:%M:%SZ} any more: its oldest, "
            f"{versions[0]}, is of {oldest:%Y-%m-%dT%H:%M:%SZ}"
        )
    return versions[older - 1]


def files_named(actions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """The data files and vector files that a commit takes in, with sizes."""
    for action in actions:
        if add := action.get("add"):
            yield unquote(add["path"]), int(add["size"])
            if (vector := add.get("deletionVector")) and (path := path_of(vector)):
                yield path, int(vector["sizeInBytes"])


def _vector_id(vector: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    if vector is None:
        return None
    return vector["storageType"], vector["pathOrInlineDv"], vector.get("offset")


def _check_features(protocol: Mapping[str, Any]) -> None:
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    unknown = sorted(named - _KNOWN_FEATURES)
    if unknown or protocol["minReaderVersion"] > 3 or protocol["minWriterVersion"] > 7:
        raise UpriverError(
            f"the table needs features that this release does not know: {', '.join(unknown)}"
        )
