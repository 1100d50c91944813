"""What must hold of tables: every commit and every deletion of a simulated store is looked at.

The log is followed here once more, on its own: which files each version of a table has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from upriver.batches.offsets import Offset
from upriver.batches.row_schema import ROLLBACK
from upriver.model import Op
from upriver.tables.commit_state import TableState
from upriver.tables.format.data_files import VALID_TO, read_rows
from upriver.tables.format.delta_log import LOG, STATE, DataFile, files_named
from upriver.tables.format.key_index import index_path
from upriver.tables.rows.row_shape import ENDED_BY

from .committed_branches import Histories, Violation
from .object_store import ObjectStore, SimulatedStorage

_COMMIT: Final = re.compile(rf"(.*){LOG}/(\d{{20}})\.json")
#: By vbucket and key the values that a table shows.
Documents = dict[tuple[int, bytes], bytes]


class TableOracle:
    """Follows the tables of one pipeline."""

    def __init__(
        self,
        store: ObjectStore,
        storage: SimulatedStorage,
        histories: Histories,
        newest_vbuuid: Callable[[int], int],
        *,
        is_mirror: bool,
        trace: Callable[..., None],
    ) -> None:
        """``newest_vbuuid`` is that of the branch that a vbucket is on now; 0 if nobody knows."""
        self._store = store
        self._storage = storage
        self._histories = histories
        self._newest_vbuuid = newest_vbuuid
        self._is_mirror = is_mirror
        self._trace = trace
        #: By table and version the actions that added its files.
        self._versions: dict[str, dict[int, dict[str, Mapping[str, Any]]]] = {}
        self.state: TableState | None = None
        self.commits = 0
        store.on_written = self._written
        store.on_delete = self._deleted

    # ---- while it runs -------------------------------------------------------------------

    def _written(self, path: str) -> None:
        if found := _COMMIT.fullmatch(path):
            self._committed(found[1], int(found[2]), self._store.content[path])

    def _committed(self, table: str, version: int, text: bytes) -> None:
        actions = [json.loads(line) for line in text.splitlines()]
        operation = next(a["commitInfo"]["operation"] for a in actions if "commitInfo" in a)
        self._trace("commit", table or "table", version, operation.replace(" ", "_").lower())
        self.commits += 1
        versions = self._versions.setdefault(table, {})
        if version and version - 1 not in versions:
            raise Violation("versions follow each other", f"{table}{version} has none before it")
        if version in versions:
            raise Violation("a version is committed once", f"{table}{version} is written again")
        files = dict(versions.get(version - 1, {}))
        for action in actions:
            if remove := action.get("remove"):
                if remove["path"] not in files:
                    raise Violation(
                        "a commit removes what is there", f"{table}{version}: {remove['path']}"
                    )
                del files[remove["path"]]
        for action in actions:
            if add := action.get("add"):
                files[add["path"]] = add
        versions[version] = files
        for name, _ in files_named(actions):
            if table + name not in self._store.content:
                raise Violation("nothing named is missing", f"{table}{version}: {name}")
        for action in actions:
            if text_of_state := (action.get("commitInfo") or {}).get(STATE):
                self._check_state(table, version, TableState.of_text(text_of_state, "the table"))

    def _check_state(self, table: str, version: int, state: TableState) -> None:
        before, self.state = self.state, state
        if before is not None and state.fence < before.fence:
            raise Violation(
                "only the newest lease commits",
                f"version {version} is made with lease {state.fence} after one with {before.fence}",
            )
        if before is not None and not before.batch <= state.batch <= before.batch + 1:
            raise Violation(
                "batches follow each other", f"{state.batch} comes after {before.batch}"
            )
        if self._is_mirror and not table and state.offset is not None:
            self._check_rows(version, state)

    def _check_rows(self, version: int, state: TableState) -> None:
        """A version of a mirror shows the documents of the bucket at the positions in its commit.

        A vbucket that has left its branch may have been read in part; the next batch goes back.
        """
        assert state.offset is not None
        shown = self.mirrored("", version)
        self._check_ends(version, state.offset)
        for vbucket, at in state.offset.progress.items():
            branch = self._histories.branch(vbucket, at.vbuuid)
            if branch is None or self._newest_vbuuid(vbucket) != at.vbuuid:
                continue
            newest, later = branch.newest(at.seqno), branch.newest(2**62)
            keys = [key for vb, key in shown if vb == vbucket]
            for key in dict.fromkeys((*newest, *keys)):
                wanted = branch.changes[newest[key]].value if key in newest else None
                found = shown.get((vbucket, key))
                if found != wanted and later.get(key, 0) <= at.seqno:
                    raise Violation(
                        "a version equals the bucket at its positions",
                        f"version {version}, vbucket {vbucket} at {at.seqno}: {key!r} is {found!r} "
                        f"and not {wanted!r}",
                    )

    def _check_ends(self, version: int, offset: Offset) -> None:
        """Versions in a history are those of the branch, and each ends where the next begins."""
        columns = ("vbucket", "key", "value", "seqno", VALID_TO, ENDED_BY)
        documents: dict[tuple[int, bytes], list[Mapping[str, Any]]] = {}
        for row in self._rows("", version, columns):
            if VALID_TO not in row:
                return
            documents.setdefault((row["vbucket"], row["key"]), []).append(row)
        for (vbucket, key), rows in documents.items():
            at = offset.at(vbucket)
            branch = self._histories.branch(vbucket, at.vbuuid)
            is_known = branch is not None and self._newest_vbuuid(vbucket) == at.vbuuid
            rows.sort(key=lambda row: row["seqno"])
            for row, after in zip(rows, [*rows[1:], None], strict=True):
                begin, end = row["seqno"], row[VALID_TO]
                next_begin = None if after is None else after["seqno"]
                fits = end == next_begin
                if row[ENDED_BY] not in (None, Op.MUTATION.value):
                    fits = begin < end and (next_begin is None or next_begin > end)
                changes = branch.changes if branch is not None and is_known else {}
                written = changes.get(begin)
                if not fits or (changes and (written is None or written.value != row["value"])):
                    raise Violation(
                        "versions follow each other as in the bucket",
                        f"version {version}, vbucket {vbucket}: {key!r} from {begin} to {end}, and "
                        f"the next from {next_begin}; the bucket has {written!r}",
                    )

    def _deleted(self, path: str) -> None:
        oldest = self.state.oldest if self.state is not None else 0
        for table, versions in self._versions.items():
            # of other tables, the versions that old commits need are not known here
            kept = [v for v in versions if v >= oldest] if not table else [max(versions)]
            for version in kept:
                for name in _paths(versions[version]):
                    if path == table + name:
                        raise Violation(
                            "nothing named is missing",
                            f"{path} is deleted, and version {version} of {table or 'it'} has it",
                        )

    # ---- when it has come to rest --------------------------------------------------------

    def mirrored(self, table: str, version: int | None = None) -> Documents:
        """The rows of a version of a mirror, by default the newest; of a history the current."""
        found: Documents = {}
        for row in self._rows(table, version, ("vbucket", "key", "value", "deleted", VALID_TO)):
            if row.get("deleted") or row.get(VALID_TO) is not None:
                continue
            place = row["vbucket"], row["key"]
            if place in found:
                raise Violation("a document has one row", f"vbucket {place[0]}: {place[1]!r}")
            found[place] = row["value"]
        return found

    def logged(self) -> Documents:
        """The documents that the rows of a change log amount to."""
        columns = ("vbucket", "branch", "seqno", "op", "key", "value")
        rows = list(self._rows("", None, columns))
        rollbacks = [r for r in rows if r["op"] == ROLLBACK]
        newest: dict[tuple[int, bytes], tuple[int, int, bytes | None]] = {}
        for row in rows:
            vbucket, branch, seqno = row["vbucket"], row["branch"], row["seqno"]
            is_dead = any(
                back["vbucket"] == vbucket and back["branch"] > branch and back["seqno"] < seqno
                for back in rollbacks
            )
            if row["op"] == ROLLBACK or is_dead:
                continue
            held = newest.get((vbucket, row["key"]))
            if held is not None and held[:2] == (branch, seqno):
                raise Violation("a change is in a table once", f"vbucket {vbucket}, seqno {seqno}")
            if held is None or (branch, seqno) > held[:2]:
                value = row["value"] if row["op"] == Op.MUTATION.value else None
                newest[vbucket, row["key"]] = (branch, seqno, value)
        return {place: value for place, (_, _, value) in newest.items() if value is not None}

    def documents(self) -> Documents:
        """What the tables show now."""
        if not self._is_mirror:
            return self.logged() if self._versions else {}
        shown: Documents = {}
        for table in self.data_tables():
            shown |= self.mirrored(table)
        return shown

    def data_tables(self) -> list[str]:
        """The tables with documents: the only one, or one for each collection."""
        return [table for table in self._versions if not table.startswith("_upriver/")]

    def _rows(
        self, table: str, version: int | None, columns: tuple[str, ...]
    ) -> Iterator[Mapping[str, Any]]:
        versions = self._versions.get(table, {})
        if not versions:
            return
        storage: Any = self._storage.under(table.rstrip("/")) if table else self._storage
        for add in versions[max(versions) if version is None else version].values():
            file = DataFile.of_add(add)
            for rows in read_rows(storage, file):
                there = [name for name in columns if name in rows.schema.names]
                yield from rows.select(there).to_pylist()

    def unneeded(self) -> list[str]:
        """Files of rows, vectors and indexes that the newest versions do not need."""
        needed = set()
        for table, versions in self._versions.items():
            for path in _paths(versions[max(versions)]):
                needed |= {table + path, table + index_path(path)}
        return [
            path
            for path in self._store.content
            if path.endswith((".parquet", ".bin", ".idx")) and f"{LOG}/" not in path
            if path not in needed
        ]


def _paths(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for add in files.values():
        yield from DataFile.of_add(add).paths
