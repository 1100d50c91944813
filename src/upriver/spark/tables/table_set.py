"""The tables of one pipeline, and the commits of its batches.

Most pipelines have one table, and a batch is one commit of it: rows, vectors, the application's
transaction and the complete state. With a table for each collection the state is in a log of its
own, ``_upriver/ledger``. There a commit says what the batch does to every table; then each table
takes its part, once, which it shows by its transaction. Values that do not fit a schema are put
aside in the same way: a commit names them, and the table of dead letters takes them then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import ConfigError
from ..source.collection_events import Name
from ..source.offsets import Offset
from .commit_state import TableState
from .executors import Executors
from .format import delta_log
from .format.delta_log import DataFile
from .format.open_table import Conflict, OpenTable
from .format.storage import FileGone, Storage
from .lease import Lease, LeaseLost
from .merge import TaskOutcome
from .rows.row_shape import LETTERS, MirrorShape
from .settings import HASH_KEY, MERGE_ON_READ, PER_COLLECTION, PIPELINE, SHAPE
from .upkeep.compaction import CompactionPace, Rewrite, Rewritten, chosen_for_compaction
from .upkeep.retention import Retention, Window, remove_leftovers

_log = logging.getLogger(__name__)

DEAD_LETTERS: Final = "_upriver/dead_letters"
LEDGER: Final = "_upriver/ledger"
_LEDGER_SCHEMA: Final = pa.schema([("batch", pa.int64())])
#: Commits between two checkpoints of the log.
CHECKPOINT_EVERY: Final = 50
_ATTEMPTS: Final = 8


@dataclass(slots=True)
class TableSet:
    """The tables of a pipeline as they are now."""

    root: Storage
    ledger: OpenTable
    state: TableState
    schema: pa.Schema
    window: Window
    #: By name the schemas of tables that have another one.
    own_schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    #: By name those of collections, and of dead letters.
    others: dict[str, OpenTable] = field(default_factory=dict)
    on_step: Callable[[str], None] = lambda step: None
    _retentions: dict[str, Retention] = field(default_factory=dict)
    #: What a plan has looked up to know where vbuckets can go back to; forgotten after it.
    _versions: dict[int, dict[str, list[DataFile]] | None] = field(default_factory=dict)
    _present: set[str] = field(default_factory=set)
    _pace: CompactionPace = field(default_factory=CompactionPace)

    # ---- opening -------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        root: Storage,
        schema: pa.Schema,
        window: Window,
        on_step: Callable[[str], None] = lambda step: None,
        *,
        trusting: bool = False,
    ) -> TableSet | None:
        """The tables of a place; None if there are none of ours.

        ConfigError if others have changed their rows, unless it is ``trusting``.
        """
        ledger = OpenTable.open(root.under(LEDGER)) or OpenTable.open(root)
        if ledger is None or ledger.snapshot.state is None:
            return None
        if not trusting:
            ledger.require_no_strangers()
        state = TableState.of_text(ledger.snapshot.state, root.url)
        tables = cls(root, ledger, state, schema, window, on_step=on_step)
        for name in {*state.tables, *state.pending}:
            found = OpenTable.open(root.under(name))
            if found is not None:
                if not trusting:
                    found.require_no_strangers()
                tables.others[name] = found
        return tables

    @classmethod
    def create(
        cls,
        root: Storage,
        schema: pa.Schema,
        properties: Mapping[str, str],
        window: Window,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> TableSet:
        per_collection = properties.get(PER_COLLECTION) == "true"
        state = TableState()
        ledger = OpenTable.create(
            root.under(LEDGER) if per_collection else root,
            _LEDGER_SCHEMA if per_collection else schema,
            properties,
            vectors=not per_collection and properties.get(MERGE_ON_READ) == "true",
            state=state.to_text(),
        )
        return cls(root, ledger, state, schema, window, on_step=on_step)

    @property
    def properties(self) -> dict[str, str]:
        return self.ledger.snapshot.configuration

    @property
    def app(self) -> str:
        return self.properties[PIPELINE]

    @property
    def key(self) -> bytes | None:
        """Of the hashes of document names; None for a change log."""
        text = self.properties.get(HASH_KEY)
        return bytes.fromhex(text) if text else None

    @property
    def per_collection(self) -> bool:
        return self.properties.get(PER_COLLECTION) == "true"

    @property
    def merge_on_read(self) -> bool:
        return self.properties.get(MERGE_ON_READ) == "true"

    def data_tables(self) -> dict[str, OpenTable]:
        """By name the tables with the pipeline's rows."""
        if not self.per_collection:
            return {"": self.ledger}
        return {name: table for name, table in self.others.items() if name != DEAD_LETTERS}

    def schema_of(self, name: str) -> pa.Schema:
        return LETTERS if name == DEAD_LETTERS else self.own_schemas.get(name, self.schema)

    def held(self) -> dict[str, list[DataFile]]:
        return {name: table.files for name, table in self.data_tables().items()}

    def refresh(self, fence: int) -> None:
        """Takes in what others have committed: a compaction, or another pipeline's batch."""
        self._forget_versions()
        for table in (self.ledger, *self.others.values()):
            table.refresh()
        assert self.ledger.snapshot.state is not None
        self.state = TableState.of_text(self.ledger.snapshot.state, self.root.url)
        if self.state.fence > fence:
            raise LeaseLost(
                f"the lease of {self.root.url} is lost: a pipeline with lease {self.state.fence} "
                f"has committed, and this one has lease {fence}; nothing was committed"
            )

    # ---- older versions ------------------------------------------------------------------

    def files_at(self, version: int) -> dict[str, list[DataFile]]:
        """By table its files when the ledger was at a version; ConfigError if that is gone."""
        if not self.per_collection:
            found = delta_log.read_snapshot(self.root, version)
            assert found is not None
            return {"": list(found.files.values())}
        then = self._state_after(version)
        if then is None:
            raise ConfigError(f"{self.ledger.storage.url} has no version {version} any more")
        files = {}
        for name, number in then.tables.items():
            if name != DEAD_LETTERS:
                snapshot = delta_log.read_snapshot(self.root.under(name), number)
                assert snapshot is not None
                files[name] = list(snapshot.files.values())
        return files

    def _state_after(self, version: int) -> TableState | None:
        """The state that the commit after a version of the ledger left."""
        for action in delta_log.read_commit(self.ledger.storage, version + 1) or ():
            if text := (action.get("commitInfo") or {}).get(delta_log.STATE):
                return TableState.of_text(text, self.root.url)
        return None

    def can_restore(self, vbucket: int, seqno: int) -> bool:
        """Whether a version with a vbucket's rows at a boundary is still there, with its files.

        Others may have vacuumed files that only older versions need.
        """
        version = self.state.versions.get(vbucket, {}).get(seqno)
        if version is None or version < self.state.oldest:
            return False
        if version not in self._versions:
            try:
                self._versions[version] = self.files_at(version)
            except (ConfigError, FileGone):
                self._versions[version] = None
        tables = self._versions[version]
        if tables is None:
            return False
        if not self._present:
            self._present = {file.path for file in self.root.files()}
        group = vbucket % MirrorShape.of_json(self.properties[SHAPE]).groups
        return all(
            f"{name}/{path}".removeprefix("/") in self._present
            for name, files in tables.items()
            for file in files
            if file.may_have(group)
            for path in file.paths
        )

    def _forget_versions(self) -> None:
        self._versions.clear()
        self._present.clear()

    # ---- a batch -------------------------------------------------------------------------

    def commit_batch(
        self,
        outcomes: Sequence[TaskOutcome],
        end: Offset,
        lease: Lease,
        executors: Executors,
        *,
        covered: Mapping[int, Name] | None = None,
        properties: Mapping[str, str] | None = None,
        operation: str = "UPRIVER BATCH",
        schema: pa.Schema | None = None,
        own_schemas: Mapping[str, pa.Schema] | None = None,
        forget: bool = False,
    ) -> None:
        """Makes a batch part of the tables, in one step; Conflict if somebody was faster.

        A table of some collections says which ones it has ``covered``. With ``properties`` or a
        ``schema`` (and ``own_schemas`` of some tables) the tables have these from now on; if it is
        to ``forget``, rollbacks cannot go back to versions before.
        """
        if schema is not None:
            self.schema, self.own_schemas = schema, own_schemas or {}
        names = {name for one in outcomes for name in (*one.files, *one.gone)}
        for name in sorted(names - {""}):
            self._collection(name)
        parts = {name: self._actions(name, outcomes, executors) for name in sorted(names)}
        self.on_step("files")
        letters = [new for one in outcomes for new in one.letters]
        if schema is not None and self.per_collection:
            for name, table in self.data_tables().items():
                mine = delta_log.schema_text(self.schema_of(name))
                wider = table.snapshot.changed_metadata({}, mine)
                parts[name] = [*wider, *parts.get(name, [])]
        pending = {name: actions for name, actions in parts.items() if name and actions}
        if letters:
            pending[DEAD_LETTERS] = [new.file.add_action() for new in letters]
        state = self._next_state(end, lease.number, pending, outcomes)
        if covered is not None:
            state = replace(state, collections=dict(covered))
        actions = parts.get("", [])
        if forget:
            state = replace(state, versions={})
        if properties or schema is not None:
            text = None if schema is None or self.per_collection else delta_log.schema_text(schema)
            actions = [*self.ledger.snapshot.changed_metadata(properties or {}, text), *actions]
        lease.check()
        done = self.ledger.commit(
            actions,
            operation=operation,
            state=state.to_text(),
            app=(self.app, state.batch),
        )
        self.state = state
        self._forget_versions()
        self._retention("").note(self.ledger.snapshot.version, done)
        self.on_step("commit")
        self.apply_pending(operation)

    def _actions(
        self, name: str, outcomes: Sequence[TaskOutcome], executors: Executors
    ) -> list[Any]:
        """What a batch does to one table."""
        table = self.data_tables()[name]
        gone: dict[str, list[npt.NDArray[np.uint32]]] = {}
        for one in outcomes:
            for file, rows in one.gone.get(name, {}).items():
                gone.setdefault(file, []).append(rows)
        new = [found for one in outcomes for found in one.files.get(name, ())]
        if self.merge_on_read or self.key is None:
            return table.mark_actions(gone, new)
        return self._copied(name, table, gone, new, executors)

    def _copied(
        self,
        table_name: str,
        table: OpenTable,
        gone: Mapping[str, Any],
        new: Sequence[Any],
        executors: Executors,
    ) -> list[Any]:
        """The same without vectors: files that lose rows are written anew."""
        schema = self.schema_of(table_name)
        actions: list[Any] = []
        tasks = []
        for name, (rows, _) in table.new_rows_gone(gone).items():
            file = table.snapshot.files[name]
            actions.append(file.remove_action())
            if len(rows) < file.rows:
                dead = {name: np.array(rows.to_array(), np.int64)}
                tasks.append(Rewrite(table.storage, schema, self.key, [file], dead))
        for one in new:
            if not len(one.dead):
                actions.append(one.file.add_action())
            elif len(one.dead) < one.file.rows:
                dead = {one.file.name: one.dead}
                tasks.append(Rewrite(table.storage, schema, self.key, [one.file], dead))
        for rewritten in executors.run(tasks):
            actions += [after.file.add_action() for after in rewritten.after]
        return actions

    def _next_state(
        self,
        end: Offset,
        fence: int,
        pending: Mapping[str, list[dict[str, Any]]],
        outcomes: Sequence[TaskOutcome],
    ) -> TableState:
        now = self.ledger.snapshot.version
        before = self.state
        if self.ledger.snapshot.commits_since_checkpoint + 1 >= CHECKPOINT_EVERY:
            self._retention("").load()  # what is let go here is deleted after the checkpoint
        oldest = self._retention("").oldest(before.oldest, now)
        versions: dict[int, dict[int, int]] = {}
        for vbucket, progress in end.progress.items():
            known = before.versions.get(vbucket, {})
            reached = before.offset.at(vbucket).seqno if before.offset is not None else 0
            places = {}
            for boundary in progress.boundaries:
                seqno = boundary.seqno
                version = known.get(seqno, now if seqno == reached else None)
                if version is not None and version >= oldest:
                    places[seqno] = version
            if places:
                versions[vbucket] = places
        return TableState(
            batch=before.batch + 1,
            offset=end,
            versions=versions,
            oldest=oldest,
            fence=fence,
            tables={name: table.snapshot.version for name, table in self.others.items()},
            pending=pending,
            collections={
                **(before.collections or {}),
                **{id_: name for one in outcomes for id_, name in one.collections.items()},
            },
        )

    def apply_pending(self, operation: str = "UPRIVER BATCH") -> None:
        """Does what the newest commit says of other tables, as far as it is not done."""
        for name, actions in sorted(self.state.pending.items()):
            table = self._collection(name)
            if table.snapshot.transactions.get(self.app, 0) >= self.state.batch:
                continue
            for _ in range(_ATTEMPTS):
                try:
                    done = table.commit(
                        actions, operation=operation, app=(self.app, self.state.batch)
                    )
                except Conflict:
                    delta_log.catch_up(table.storage, table.snapshot)
                    if table.snapshot.transactions.get(self.app, 0) >= self.state.batch:
                        break  # whoever has taken the lease over has done it
                    self._require_applicable(table, actions)
                    continue
                self._retention(name).note(table.snapshot.version, done)
                break
            else:
                raise ConfigError(f"others keep changing {table.storage.url}")
            self.on_step("table")

    def _require_applicable(self, table: OpenTable, actions: Sequence[Mapping[str, Any]]) -> None:
        for action in actions:
            if "remove" in action and not table.snapshot.has(action["remove"]):
                raise ConfigError(
                    f"version {table.snapshot.version} of {table.storage.url} was made by another "
                    "program while a batch was being committed, and has other files; restore the "
                    "version before it and start the pipeline again, or let it make new tables"
                )

    def _collection(self, name: str) -> OpenTable:
        """One of the other tables, made if it is not there."""
        if name not in self.others:
            storage = self.root.under(name)
            letters = name == DEAD_LETTERS
            self.others[name] = OpenTable.open(storage) or OpenTable.create(
                storage,
                self.schema_of(name),
                self.properties,
                vectors=not letters and self.merge_on_read,
            )
        return self.others[name]

    # ---- care ----------------------------------------------------------------------------

    def _retention(self, name: str) -> Retention:
        if name not in self._retentions:
            storage = self.ledger.storage if not name else self.root.under(name)
            self._retentions[name] = Retention(storage, self.window)
        return self._retentions[name]

    def all_tables(self) -> dict[str, OpenTable]:
        return {"": self.ledger, **self.others}

    def compact(self, executors: Executors, *, everything: bool = False) -> bool:
        """Rewrites files that are small or have many dead rows; says whether more of them are due.

        Unless ``everything`` is to be done, one round takes about a second.
        """
        is_more = False
        left = self._pace.bytes
        for name, table in self.all_tables().items():
            for _ in range(_ATTEMPTS):
                chosen, more = chosen_for_compaction(
                    table.files, everything=everything, most_bytes=left
                )
                if not chosen:
                    break
                if left <= 0:
                    return True
                began = time.monotonic()
                letters = name == DEAD_LETTERS
                tasks = [
                    Rewrite(
                        table.storage,
                        self.schema_of(name),
                        None if letters else self.key,
                        files,
                    )
                    for files in chosen
                ]
                done: list[Rewritten] = executors.run(tasks)
                self.on_step("compaction files")
                try:
                    self._exchange(name, table, done)
                except Conflict:
                    table.refresh()
                    continue
                size = sum(file.size for one in done for file in one.before)
                self._pace.took(size, time.monotonic() - began)
                left -= size
                is_more = is_more or more
                self.on_step("compaction commit")
                break
        return is_more

    def _exchange(self, name: str, table: OpenTable, done: Sequence[Rewritten]) -> None:
        actions: list[Any] = []
        for one in done:
            actions += [file.remove_action(data_change=False) for file in one.before]
            actions += [new.file.add_action(data_change=False) for new in one.after]
        # every commit of the ledger has the state, so the newest commit is enough to go on
        state = table.snapshot.state if not name else None
        committed = table.commit(actions, operation="OPTIMIZE", state=state)
        self._retention(name).note(table.snapshot.version, committed)

    def checkpoint(self, every: int | None = None) -> bool:
        """Sums the logs up, where that is due; says whether any was."""
        every = CHECKPOINT_EVERY if every is None else every
        tables = self.all_tables()
        if all(table.snapshot.commits_since_checkpoint < every for table in tables.values()):
            return False
        oldest = self._oldest_versions()
        done = [table.checkpoint_if_due(every, oldest[name]) for name, table in tables.items()]
        return any(done)

    def vacuum(self) -> dict[str, int]:
        """Deletes what only versions need that are not kept any more; by table how many files."""
        oldest = self._oldest_versions()
        gone = {
            name: self._retention(name).vacuum(table.snapshot, oldest[name])
            for name, table in self.all_tables().items()
        }
        return gone | self._vacuum_unnamed()

    def _vacuum_unnamed(self) -> dict[str, int]:
        """Deletes what failed batches have left for tables that no commit names yet."""
        names = {DEAD_LETTERS}
        if self.per_collection:
            names |= set(self.root.names()) - {DEAD_LETTERS.partition("/")[0], delta_log.LOG}
        gone: dict[str, int] = {}
        for name in sorted(names - self.others.keys() - self.state.pending.keys()):
            table = OpenTable.open(self.root.under(name))
            if table is None:
                gone[name] = remove_leftovers(self.root.under(name))
                continue
            made = table.snapshot
            if made.version == 0 and made.configuration.get(PIPELINE) == self.app:
                gone[name] = self._retention(name).vacuum(made, 0)
        return {name: count for name, count in gone.items() if count}

    def _oldest_versions(self) -> dict[str, int]:
        """By table the oldest version that is still needed."""
        oldest = {name: table.snapshot.version for name, table in self.all_tables().items()}
        oldest[""] = min(self.state.oldest, oldest[""])
        if self.per_collection and self.state.oldest < self.ledger.snapshot.version:
            then = self._state_after(self.state.oldest)
            for name in oldest.keys() - {""}:
                needed = then.tables.get(name, 0) if then is not None else 0
                oldest[name] = min(oldest[name], needed)
        return oldest

    def take_over(self, lease: Lease) -> None:
        """Commits the number of the lease, so that its last holder can commit nothing more."""
        for _ in range(_ATTEMPTS):
            self.apply_pending()
            tables = {name: table.snapshot.version for name, table in self.others.items()}
            state = replace(self.state, fence=lease.number, tables=tables)
            lease.check()
            try:
                done = self.ledger.commit([], operation="UPRIVER LEASE", state=state.to_text())
            except Conflict:
                self.refresh(lease.number)
                continue
            self.state = state
            self._retention("").note(self.ledger.snapshot.version, done)
            return
        raise ConfigError(f"others keep changing {self.ledger.storage.url}")

    def let_go(self, lease: Lease, seconds: float) -> None:
        """Commits that versions older than that are not needed, so that they can be deleted."""
        self._retentions.clear()
        self.window = replace(self.window, seconds=seconds)
        self._retention("").load()
        oldest = self._retention("").oldest(self.state.oldest, self.ledger.snapshot.version)
        if oldest <= self.state.oldest:
            return
        versions = {
            vb: {seqno: version for seqno, version in places.items() if version >= oldest}
            for vb, places in self.state.versions.items()
        }
        tables = {name: table.snapshot.version for name, table in self.others.items()}
        state = replace(
            self.state, oldest=oldest, versions=versions, fence=lease.number, tables=tables
        )
        lease.check()
        self.ledger.commit([], operation="UPRIVER RETENTION", state=state.to_text())
        self.state = state
