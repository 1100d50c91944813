"""How long versions are kept, and the removal of files that only older ones need.

A version is kept while it is young enough, as long as there are not too many versions and what
only old versions need is not too large. The oldest version that is kept is in the state of every
commit, so boundaries that need older ones are dropped in a commit before any file is deleted.

A batch writes its files before a commit names them, and those of a table's first batch before the
table has a log. If the batch fails, `remove_leftovers` finds them.

`deltalake`'s vacuum is not used: it does not know vectors and indexes below ``_`` names.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...files.storage import Storage
from ..format import deletion_vectors, key_index, row_lookup
from ..format.delta_log import (
    LOG,
    DataFile,
    TableSnapshot,
    files_named,
    log_versions,
    read_commit,
    read_snapshot,
)
from ..format.key_index import index_path
from ..format.row_lookup import cache_path

_log = logging.getLogger(__name__)

#: Versions that are kept at most, since each costs a file of the log.
MOST_VERSIONS: Final = 1000
#: Commits that are read at the same time.
_READ_AT_ONCE: Final = 16
#: Files that no commit names go when nobody can be about to commit them any more.
_IN_FLIGHT: Final = timedelta(hours=1)
#: Folders of a table for files of ours besides rows.
_OUR_FOLDERS: Final = (deletion_vectors.FOLDER, key_index.FOLDER, row_lookup.FOLDER)
#: A file of rows as `data_files` names it.
_OUR_ROWS: Final = re.compile(r"part-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, slots=True)
class Window:
    """How much of the past is kept."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Commit:
    time: float
    #: Bytes of files that this version does not have any more.
    removed: int
    named: tuple[str, ...]


_UNKNOWN: Final = _Commit(float("inf"), 0, ())


class Retention:
    """Knows the commits of one table since the oldest version that is kept."""

    def __init__(self, storage: Storage, window: Window) -> None:
        self._storage = storage
        self._window = window
        self._commits: dict[int, _Commit] = {}

    def note(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """A commit that was made or read."""
        info: Any = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
        back = {one["add"]["path"] for one in actions if "add" in one}
        removed = sum(
            one["remove"].get("size") or 0
            for one in actions
            if "remove" in one and one["remove"]["path"] not in back
        ) + sum(
            (one["remove"].get("deletionVector") or {}).get("sizeInBytes") or 0
            for one in actions
            if "remove" in one
        )
        named = tuple(path for path, _ in files_named(actions))
        moment = (info.get("timestamp") or time.time() * 1000) / 1000
        self._commits[version] = _Commit(moment, removed, named)

    def oldest(self, kept: int, newest: int) -> int:
        """The oldest version to keep, when versions from ``kept`` to ``newest`` are there.

        Commits that are not known (see `load`) are taken for young and small.
        """
        now = time.time()
        size, oldest = 0, newest
        for version in range(newest, kept, -1):
            # version - 1 is needed by readers until the commit of this one, and what it removed
            commit = self._commits.get(version, _UNKNOWN)
            size += commit.removed
            if (
                now - commit.time > self._window.seconds
                or size > self._window.bytes
                or newest - version + 1 >= MOST_VERSIONS
            ):
                break
            oldest = version - 1
        return max(kept, oldest)

    def load(self) -> None:
        """Reads the commits that are not known, several at a time: a store answers slowly."""
        unknown = [n for n in log_versions(self._storage)[0] if n not in self._commits]
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            found = pool.map(lambda version: read_commit(self._storage, version), unknown)
            for version, actions in zip(unknown, found, strict=True):
                if actions is not None:
                    self.note(version, actions)

    def vacuum(self, snapshot: TableSnapshot, oldest: int) -> int:
        """Deletes what no version from ``oldest`` on needs; returns how many data files went."""
        needed = _paths(snapshot.files.values())
        if oldest < snapshot.version:
            then = read_snapshot(self._storage, oldest)
            needed |= _paths(then.files.values()) if then is not None else set()
        once_named: set[str] = set()
        self.load()
        for version, commit in self._commits.items():
            once_named |= set(commit.named)
            needed |= set(commit.named) if version > oldest else set()
        needed |= {index_path(path) for path in needed if path.endswith(".parquet")}
        needed |= {cache_path(file.path) for file in snapshot.files.values()}
        once_named |= {cache_path(path) for path in once_named if path.endswith(".parquet")}
        once_named |= {index_path(path) for path in once_named if path.endswith(".parquet")}
        late = _latest_unnamed()
        doomed = [
            file.path
            for file in self._storage.files()
            if _is_ours(file.path)
            and file.path not in needed
            and (file.path in once_named or file.modified < late)
        ]
        self._storage.delete(doomed)
        self._clean_log(oldest)
        for version in [number for number in self._commits if number < oldest]:
            del self._commits[version]
        return sum(path.endswith(".parquet") for path in doomed)

    def _clean_log(self, oldest: int) -> None:
        """Removes commits and checkpoints that no version from ``oldest`` on needs."""
        versions, checkpoints = log_versions(self._storage)
        start = max((version for version in checkpoints if version <= oldest), default=-1)
        paths = [f"{LOG}/{version:020}.json" for version in versions if version < start]
        paths += [
            path for version, parts in checkpoints.items() if version < start for path in parts
        ]
        self._storage.delete(paths)


def remove_leftovers(storage: Storage) -> int:
    """Deletes what failed batches have left where no table was made; says how many data files."""
    files = list(storage.files())
    if any(file.path.startswith(f"{LOG}/") for file in files):
        return 0
    late = _latest_unnamed()
    doomed = [
        file.path
        for file in files
        if file.modified < late
        and (file.path.rpartition("/")[0] in _OUR_FOLDERS or _OUR_ROWS.fullmatch(file.path))
    ]
    storage.delete(doomed)
    return sum(path.endswith(".parquet") for path in doomed)


def _latest_unnamed() -> datetime:
    """When a file that no commit names must have been written to be deleted."""
    return datetime.fromtimestamp(time.time(), UTC) - _IN_FLIGHT


def _paths(files: Any) -> set[str]:
    found = set()
    for file in files:
        assert isinstance(file, DataFile)
        found.update(file.paths)
    return found


def _is_ours(path: str) -> bool:
    """Whether a file is data, a vector or an index of this table, and of no table below it."""
    folder, _, name = path.rpartition("/")
    if folder in _OUR_FOLDERS:
        return True
    return name.endswith(".parquet") and not folder.startswith("_") and "_delta_log" not in folder
