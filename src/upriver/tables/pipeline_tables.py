"""The tables of one pipeline, and the commits of its batches.

Most pipelines have one table, and a batch is one commit of it: rows, vectors, the application's
transaction and the complete state. With a table for each collection the state is in a log of its
own, ``_upriver/ledger``. There a commit says what the batch does to every table; then each table
takes its part, once, which it shows by its transaction. Values that do not fit a schema are put
aside in the same way: a commit names them, and the table of dead letters takes them then.
`TableMaintenance` rearranges the files of the tables, `OlderVersions` knows their versions before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..batches.collection_events import Name
from ..batches.offsets import UNTOUCHED, Offset
from ..errors import ConfigError
from ..files.storage import Storage
from .commit_state import DEAD_LETTERS, TableState
from .copy_on_write import copy_actions
from .executors import Executors
from .format import delta_log, schema_json
from .format.delta_log import DataFile
from .format.open_table import Conflict, OpenTable
from .lease import Lease, LeaseLost
from .merge import TaskOutcome
from .pipeline_settings import HASH_KEY, MERGE_ON_READ, PER_COLLECTION, PIPELINE
from .restore_versions import OlderVersions
from .rows.row_shape import LETTERS
from .upkeep.version_retention import Retention, Window

_log = logging.getLogger(__name__)

LEDGER: Final = "_upriver/ledger"
_LEDGER_SCHEMA: Final = pa.schema([("batch", pa.int64())])
#: Commits between two checkpoints of the log.
CHECKPOINT_EVERY: Final = 50
#: Attempts at a commit while others change the same table.
ATTEMPTS: Final = 8


@dataclass(slots=True)
class PipelineTables:
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
    older: OlderVersions = field(init=False)
    _retentions: dict[str, Retention] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.older = OlderVersions(self)

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
    ) -> PipelineTables | None:
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
    ) -> PipelineTables:
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

    def all_tables(self) -> dict[str, OpenTable]:
        return {"": self.ledger, **self.others}

    def other_versions(self) -> dict[str, int]:
        """By name the versions of the tables beside the ledger."""
        return {name: table.snapshot.version for name, table in self.others.items()}

    def schema_of(self, name: str) -> pa.Schema:
        return LETTERS if name == DEAD_LETTERS else self.own_schemas.get(name, self.schema)

    def held(self) -> dict[str, list[DataFile]]:
        return {name: table.files for name, table in self.data_tables().items()}

    def letters(self) -> list[DataFile]:
        """The files of dead letters."""
        held = self.others.get(DEAD_LETTERS)
        return held.files if held is not None else []

    def refresh(self, fence: int) -> None:
        """Takes in what others have committed: a compaction, or another pipeline's batch."""
        self.older.forget()
        for table in (self.ledger, *self.others.values()):
            table.refresh()
        assert self.ledger.snapshot.state is not None
        self.state = TableState.of_text(self.ledger.snapshot.state, self.root.url)
        if self.state.fence > fence:
            raise LeaseLost(
                f"the lease of {self.root.url} is lost: a pipeline with lease {self.state.fence} "
                f"has committed, and this one has lease {fence}; nothing was committed"
            )

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
                mine = schema_json.to_json(self.schema_of(name))
                wider = table.snapshot.changed_metadata({}, mine)
                parts[name] = [*wider, *parts.get(name, [])]
        pending = {name: actions for name, actions in parts.items() if name and actions}
        if letters:
            held = self._collection(DEAD_LETTERS).snapshot
            wider = held.changed_metadata({}, schema_json.to_json(LETTERS))
            pending[DEAD_LETTERS] = [*wider, *(new.file.add_action() for new in letters)]
        state = self._next_state(end, lease.number, pending, outcomes)
        if covered is not None:
            state = replace(state, collections=dict(covered))
        actions = parts.get("", [])
        if forget:
            state = replace(state, versions={})
        if properties or schema is not None:
            text = None if schema is None or self.per_collection else schema_json.to_json(schema)
            actions = [*self.ledger.snapshot.changed_metadata(properties or {}, text), *actions]
        lease.check()
        done = self.ledger.commit(
            actions,
            operation=operation,
            state=state.to_text(),
            app=(self.app, state.batch),
        )
        self.state = state
        self.older.forget()
        self.retention("").note(self.ledger.snapshot.version, done)
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
        return copy_actions(table, self.schema_of(name), self.key, gone, new, executors)

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
            self.retention("").load()  # what is let go here is deleted after the checkpoint
        oldest = self.retention("").oldest(before.oldest, now)
        versions: dict[int, dict[int, int]] = {}
        for vbucket, progress in end.progress.items():
            known = before.versions.get(vbucket, {})
            was = before.offset.at(vbucket) if before.offset is not None else UNTOUCHED
            places = {}
            for boundary in progress.boundaries:
                seqno = boundary.seqno
                if seqno == progress.seqno and progress != was:
                    continue  # the version that is being made is the first with these rows
                version = known.get(seqno, now if seqno == was.seqno else None)
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
            tables=self.other_versions(),
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
            for _ in range(ATTEMPTS):
                try:
                    done = table.commit(
                        actions, operation=operation, app=(self.app, self.state.batch)
                    )
                except Conflict:
                    delta_log.catch_up(table.storage, table.snapshot)
                    if table.snapshot.transactions.get(self.app, 0) >= self.state.batch:
                        break  # whoever has taken the lease over has done it
                    table.require_removable(actions)
                    continue
                self.retention(name).note(table.snapshot.version, done)
                break
            else:
                raise ConfigError(f"others keep changing {table.storage.url}")
            self.on_step("table")

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

    def retention(self, name: str) -> Retention:
        if name not in self._retentions:
            storage = self.ledger.storage if not name else self.root.under(name)
            self._retentions[name] = Retention(storage, self.window)
        return self._retentions[name]

    def forget_retentions(self) -> None:
        self._retentions.clear()

    def take_over(self, lease: Lease) -> None:
        """Commits the number of the lease, so that its last holder can commit nothing more."""
        for _ in range(ATTEMPTS):
            self.apply_pending()
            state = replace(self.state, fence=lease.number, tables=self.other_versions())
            lease.check()
            try:
                done = self.ledger.commit([], operation="UPRIVER LEASE", state=state.to_text())
            except Conflict:
                self.refresh(lease.number)
                continue
            self.state = state
            self.retention("").note(self.ledger.snapshot.version, done)
            return
        raise ConfigError(f"others keep changing {self.ledger.storage.url}")
