"""Care for the tables of a pipeline: compaction, checkpoints of their logs, and vacuum.

No row changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import pipeline_tables
from ..commit_state import DEAD_LETTERS
from ..executors import Executors
from ..format import delta_log
from ..format.open_table import Conflict, OpenTable
from ..lease import Lease
from ..pipeline_settings import PIPELINE
from .compaction import CompactionPace, Rewrite, Rewritten, chosen_for_compaction
from .version_retention import remove_leftovers


class TableMaintenance:
    """Rearranges the files of the tables, and removes what nobody needs any more."""

    def __init__(self, tables: pipeline_tables.PipelineTables) -> None:
        self._tables = tables
        self._pace = CompactionPace()

    def compact(self, executors: Executors, *, everything: bool = False) -> bool:
        """Rewrites files that are small or have many dead rows; says whether more of them are due.

        Unless ``everything`` is to be done, one round takes about a second.
        """
        tables = self._tables
        is_more = False
        left = self._pace.bytes
        for name, table in tables.all_tables().items():
            for _ in range(pipeline_tables.ATTEMPTS):
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
                        tables.schema_of(name),
                        None if letters else tables.key,
                        files,
                    )
                    for files in chosen
                ]
                done: list[Rewritten] = executors.run(tasks)
                tables.on_step("compaction files")
                try:
                    self._exchange(name, table, done)
                except Conflict:
                    table.refresh()
                    continue
                size = sum(file.size for one in done for file in one.before)
                self._pace.took(size, time.monotonic() - began)
                left -= size
                is_more = is_more or more
                tables.on_step("compaction commit")
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
        self._tables.retention(name).note(table.snapshot.version, committed)

    def checkpoint(self, every: int | None = None) -> bool:
        """Sums the logs up, where that is due; says whether any was."""
        every = pipeline_tables.CHECKPOINT_EVERY if every is None else every
        tables = self._tables.all_tables()
        if all(table.snapshot.commits_since_checkpoint < every for table in tables.values()):
            return False
        oldest = self._oldest_versions()
        done = [table.checkpoint_if_due(every, oldest[name]) for name, table in tables.items()]
        return any(done)

    def vacuum(self) -> dict[str, int]:
        """Deletes what only versions need that are not kept any more; by table how many files."""
        oldest = self._oldest_versions()
        gone = {
            name: self._tables.retention(name).vacuum(table.snapshot, oldest[name])
            for name, table in self._tables.all_tables().items()
        }
        return gone | self._vacuum_unnamed()

    def _vacuum_unnamed(self) -> dict[str, int]:
        """Deletes what failed batches have left for tables that no commit names yet."""
        tables = self._tables
        names = {DEAD_LETTERS}
        if tables.per_collection:
            names |= set(tables.root.names()) - {DEAD_LETTERS.partition("/")[0], delta_log.LOG}
        gone: dict[str, int] = {}
        for name in sorted(names - tables.others.keys() - tables.state.pending.keys()):
            table = OpenTable.open(tables.root.under(name))
            if table is None:
                gone[name] = remove_leftovers(tables.root.under(name))
                continue
            made = table.snapshot
            if made.version == 0 and made.configuration.get(PIPELINE) == tables.app:
                gone[name] = tables.retention(name).vacuum(made, 0)
        return {name: count for name, count in gone.items() if count}

    def _oldest_versions(self) -> dict[str, int]:
        """By table the oldest version that is still needed."""
        tables = self._tables
        oldest = {name: table.snapshot.version for name, table in tables.all_tables().items()}
        oldest[""] = min(tables.state.oldest, oldest[""])
        if tables.per_collection and tables.state.oldest < tables.ledger.snapshot.version:
            then = tables.older.state_after(tables.state.oldest)
            for name in oldest.keys() - {""}:
                needed = then.tables.get(name, 0) if then is not None else 0
                oldest[name] = min(oldest[name], needed)
        return oldest

    def let_go(self, lease: Lease, seconds: float) -> None:
        """Commits that versions older than that are not needed, so that they can be deleted."""
        tables = self._tables
        tables.forget_retentions()
        tables.window = replace(tables.window, seconds=seconds)
        tables.retention("").load()
        oldest = tables.retention("").oldest(tables.state.oldest, tables.ledger.snapshot.version)
        if oldest <= tables.state.oldest:
            return
        versions = {
            vb: {seqno: version for seqno, version in places.items() if version >= oldest}
            for vb, places in tables.state.versions.items()
        }
        state = replace(
            tables.state,
            oldest=oldest,
            versions=versions,
            fence=lease.number,
            tables=tables.other_versions(),
        )
        lease.check()
        tables.ledger.commit([], operation="UPRIVER RETENTION", state=state.to_text())
        tables.state = state
