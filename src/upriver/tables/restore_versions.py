"""Older versions of a pipeline's tables, which a vbucket goes back to after a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..files.storage import FileGone
from .commit_state import DEAD_LETTERS, TableState
from .format import delta_log
from .format.delta_log import DataFile
from .pipeline_settings import SHAPE
from .rows.row_shape import MirrorShape

if TYPE_CHECKING:
    from .pipeline_tables import PipelineTables


class OlderVersions:
    """The versions that the tables have had, as far as they are still there."""

    def __init__(self, tables: PipelineTables) -> None:
        self._tables = tables
        #: What a plan has looked up to know where vbuckets can go back to; forgotten after it.
        self._files: dict[int, dict[str, list[DataFile]] | None] = {}
        self._present: set[str] = set()

    def files_at(self, version: int) -> dict[str, list[DataFile]]:
        """By table its files when the ledger was at a version; ConfigError if that is gone."""
        if not self._tables.per_collection:
            found = delta_log.read_snapshot(self._tables.root, version)
            assert found is not None
            return {"": list(found.files.values())}
        then = self.state_after(version)
        if then is None:
            raise ConfigError(
                f"{self._tables.ledger.storage.url} has no version {version} any more"
            )
        files = {}
        for name, number in then.tables.items():
            if name != DEAD_LETTERS:
                snapshot = delta_log.read_snapshot(self._tables.root.under(name), number)
                assert snapshot is not None
                files[name] = list(snapshot.files.values())
        return files

    def state_after(self, version: int) -> TableState | None:
        """The state that the commit after a version of the ledger left."""
        for action in delta_log.read_commit(self._tables.ledger.storage, version + 1) or ():
            if text := (action.get("commitInfo") or {}).get(delta_log.STATE):
                return TableState.of_text(text, self._tables.root.url)
        return None

    def can_restore(self, vbucket: int, seqno: int) -> bool:
        """Whether a version with a vbucket's rows at a boundary is still there, with its files.

        Others may have vacuumed files that only older versions need.
        """
        version = self._tables.state.versions.get(vbucket, {}).get(seqno)
        if version is None or version < self._tables.state.oldest:
            return False
        if version not in self._files:
            try:
                self._files[version] = self.files_at(version)
            except (ConfigError, FileGone):
                self._files[version] = None
        tables = self._files[version]
        if tables is None:
            return False
        if not self._present:
            self._present = {file.path for file in self._tables.root.files()}
        group = vbucket % MirrorShape.of_json(self._tables.properties[SHAPE]).groups
        return all(
            f"{name}/{path}".removeprefix("/") in self._present
            for name, files in tables.items()
            for file in files
            if file.may_have(group)
            for path in file.paths
        )

    def forget(self) -> None:
        self._files.clear()
        self._present.clear()
