"""One Delta table that is being written: its newest snapshot, and commits that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..._extras import extra
from ...errors import ConfigError, UpriverError
from ...files.storage import Storage
from . import delta_log, schema_json
from .data_files import NewFile
from .deletion_vectors import VectorFile, read_vector
from .delta_log import DataFile, TableSnapshot

with extra("spark"):
    from pyroaring import BitMap64


class Conflict(UpriverError):
    """Somebody else has made the version that was to be made; nothing was committed."""


@dataclass(slots=True)
class OpenTable:
    """A table as this process knows it."""

    storage: Storage
    snapshot: TableSnapshot
    #: The vectors of files, as far as they were needed.
    _vectors: dict[str, tuple[Any, BitMap64]] = field(default_factory=dict)

    @classmethod
    def open(cls, storage: Storage) -> OpenTable | None:
        found = delta_log.read_snapshot(storage)
        return cls(storage, found) if found is not None else None

    @classmethod
    def create(
        cls,
        storage: Storage,
        schema: pa.Schema,
        configuration: Mapping[str, str],
        *,
        vectors: bool,
        state: str | None = None,
    ) -> OpenTable:
        """Makes an empty table, or opens the one that somebody else makes at the same time."""
        text = schema_json.to_json(schema)
        actions = delta_log.create_actions(text, configuration, vectors=vectors)
        delta_log.commit(storage, 0, actions, operation="CREATE TABLE", state=state)
        table = cls.open(storage)
        assert table is not None
        return table

    @property
    def files(self) -> list[DataFile]:
        return list(self.snapshot.files.values())

    def refresh(self) -> None:
        """Takes in what others have committed; ConfigError if they have changed rows."""
        delta_log.catch_up(self.storage, self.snapshot)
        self.require_no_strangers()

    def require_no_strangers(self) -> None:
        if self.snapshot.strangers:
            version, operation = self.snapshot.strangers[0]
            raise ConfigError(
                f"version {version} of {self.storage.url} was written by another program "
                f"({operation}), so its rows are not the pipeline's any more; nothing was changed. "
                f"Run upriver repair, restore version {version - 1}, or give a new table"
            )

    def commit(
        self,
        actions: Sequence[Mapping[str, Any]],
        *,
        operation: str,
        state: str | None = None,
        app: tuple[str, int] | None = None,
    ) -> list[dict[str, Any]]:
        """Makes the next version; Conflict if somebody else was faster."""
        version = self.snapshot.version + 1
        marks = [{"txn": {"appId": app[0], "version": app[1]}}] if app else []
        done = delta_log.commit(
            self.storage, version, [*marks, *actions], operation=operation, state=state
        )
        if done is None:
            raise Conflict(f"version {version} of {self.storage.url} was made by somebody else")
        self.snapshot.apply(version, done)
        return done

    def checkpoint_if_due(self, every: int, oldest: int) -> bool:
        """Sums up the log after so many commits; versions from ``oldest`` on are kept."""
        if self.snapshot.commits_since_checkpoint < every:
            return False
        delta_log.write_checkpoint(self.storage, self.snapshot, oldest)
        return True

    # ---- rows that go --------------------------------------------------------------------

    def require_removable(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """ConfigError if the table does not have a file that one of the actions removes."""
        for action in actions:
            if "remove" in action and not self.snapshot.has(action["remove"]):
                raise ConfigError(
                    f"version {self.snapshot.version} of {self.storage.url} was made by another "
                    "program while a batch was being committed, and has other files; restore the "
                    "version before it and start the pipeline again, or let it make new tables"
                )

    def new_rows_gone(
        self, gone: Mapping[str, Iterable[npt.NDArray[np.uint32]]]
    ) -> dict[str, tuple[BitMap64, BitMap64]]:
        """By file all rows that are gone then, and those of them that still live now."""
        found: dict[str, tuple[BitMap64, BitMap64]] = {}
        for name, parts in gone.items():
            file = self.snapshot.files[name]
            named = BitMap64()
            for rows in parts:
                named |= BitMap64(rows.tolist())
            before = self._vector(file)
            fresh = named - before
            if fresh:
                found[name] = before | named, fresh
        return found

    def _vector(self, file: DataFile) -> BitMap64:
        place = file.vector and (file.vector["pathOrInlineDv"], file.vector.get("offset"))
        held = self._vectors.get(file.name)
        if held is None or held[0] != place:
            held = place, read_vector(self.storage, file.vector)
            self._vectors[file.name] = held
        return held[1]

    def mark_actions(
        self, gone: Mapping[str, Iterable[npt.NDArray[np.uint32]]], new: Sequence[NewFile]
    ) -> list[dict[str, Any]]:
        """Takes new files in, and marks rows as gone, in them and in those that are there."""
        vectors = VectorFile()
        actions: list[dict[str, Any]] = []
        for name, (rows, _) in self.new_rows_gone(gone).items():
            file = self.snapshot.files[name]
            actions.append(file.remove_action())
            if len(rows) < file.rows:
                marked = file.with_vector(vectors.add(rows))
                assert marked.vector is not None
                place = (marked.vector["pathOrInlineDv"], marked.vector["offset"])
                self._vectors[name] = place, rows
                actions.append(marked.add_action())
            else:
                self._vectors.pop(name, None)
        for one in new:
            file = one.file
            if len(one.dead) == file.rows:
                continue
            if len(one.dead):
                file = file.with_vector(vectors.add(BitMap64(one.dead.tolist())))
            actions.append(file.add_action())
        vectors.write(self.storage)
        return actions
