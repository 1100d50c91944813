"""Where a table's files are: a directory, or a prefix of an object store, through one interface.

    /data/documents, file:///data/documents, s3://bucket/path, az://container/path,
    abfss://container@account.dfs.core.windows.net/path, gs://bucket/path

Options and credentials are those that `deltalake` takes (``AWS_ENDPOINT_URL``,
``AZURE_STORAGE_ACCOUNT_KEY``, ...). They come from the driver's environment and from the option
``storageOptions``, which wins; they are sent to the executors and never written anywhere.

Files never change once they are written, so nothing has to be renamed: names are unique, and only
what a commit names counts. A commit and a lease are files that are created only if nobody else has
created them before. Each has an id in it, by which its writer recognises it where a store has
created the file and its answer was lost.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from .._extras import extra
from ..errors import ConfigError, UpriverError
from .slow_requests import watched_request

with extra("spark"):
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore

    from .object_stores import (
        is_object_store,
        open_store,
        put_new,
        said,
        store_options,
    )

#: Deleted by one call; stores take at most this many.
_DELETED_AT_ONCE: Final = 1000


class StorageFailed(UpriverError):
    """A store refused a request or did not answer."""


class FileGone(UpriverError):
    """A file that the table's log names is not there any more."""

    @classmethod
    def at(cls, storage: Storage, path: str) -> Self:
        return cls(
            f"{storage.url}/{path} is gone, though the table's log names it: another program has "
            "deleted it; put it back, or let the pipeline make a new table"
        )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it."""

    #: Relative to the storage.
    path: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory or a prefix. It can be pickled; every process makes its own connections."""

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(
        cls,
        text: str | os.PathLike[str],
        options: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """A path or an address; ConfigError for what is neither."""
        text = os.fspath(text)
        if text.startswith("file:"):
            text = unquote(urlsplit(text).path)
        if not text:
            raise ConfigError("table: give a directory, or an address such as s3://bucket/path")
        if "://" not in text:
            return cls(str(Path(text).absolute()))
        if not is_object_store(text):
            raise ConfigError(
                f"table: {text!r} is no place for a table; give a directory, s3://bucket/path, "
                "az://container/path, abfss://container@account.dfs.core.windows.net/path or "
                "gs://bucket/path"
            )
        chosen = store_options(text, options or {}, environ)
        return cls(text.rstrip("/"), tuple(sorted(chosen.items())))

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @property
    def path(self) -> Path:
        """The directory; ConfigError for an object store."""
        if not self.is_local:
            raise ConfigError(f"{self.url} is no directory of this machine")
        return Path(self.url)

    def under(self, name: str) -> Storage:
        """A directory or prefix in this one."""
        return Storage(f"{self.url}/{name}", self.options)

    # ---- files ---------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file unless there is one; says whether the file there is this one.

        The data must be unlike what anybody else writes there. A store may have created the file
        although the request failed, or although a repetition of it was told that the file exists:
        then the file is read.
        """
        try:
            return self._put_new(path, data) or self._has(path, data)
        except StorageFailed:
            with suppress(StorageFailed):  # the first failure says more
                if self._has(path, data):
                    return True
            raise

    def _put_new(self, path: str, data: bytes) -> bool:
        """Asks the store to create a file; False if it answers that there is one."""
        with self._translated(path, writing=True):
            return put_new(self._store, path, data)

    def _has(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except FileNotFoundError:
            return False

    def put(self, path: str, data: bytes | Path) -> None:
        """Writes a file, or replaces it."""
        with self._translated(path, writing=True):
            obstore.put(self._store, path, data)

    def read(self, path: str) -> bytes:
        """All of a file; FileNotFoundError if there is none."""
        with self._translated(path):
            return bytes(obstore.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self._translated(path):
            return bytes(obstore.get_range(self._store, path, start=start, length=length))

    def source(self, path: str) -> Any:
        """A file for pyarrow to read, mapped if it is local, else in memory; or FileGone."""
        try:
            if self.is_local:
                return pa.memory_map(str(self.path / path))
            return pa.BufferReader(self.read(path))
        except FileNotFoundError:
            raise FileGone.at(self, path) from None

    @contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        """A local file to write; what is in it when the block ends is at ``path``."""
        if self.is_local:
            place = self.path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            yield place
            return
        with tempfile.TemporaryDirectory(prefix="upriver-") as directory:
            draft = Path(directory) / "file"
            yield draft
            self.put(path, draft)

    def exists(self, path: str) -> bool:
        try:
            with self._translated(path):
                obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        """Files below a prefix, at any depth."""
        if self.is_local and not self.path.is_dir():
            return
        with self._translated(prefix):
            chunks = iter(obstore.list(self._store, prefix or None))
        chunk: Any = ()
        while chunk is not None:
            for one in chunk:
                yield StoredFile(one["path"], one["size"], one["last_modified"])
            with self._translated(prefix):
                chunk = next(chunks, None)

    def names(self, prefix: str = "") -> list[str]:
        """The names of directories right below a prefix."""
        if self.is_local and not (self.path / prefix).is_dir():
            return []
        with self._translated(prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def delete(self, paths: Iterable[str]) -> int:
        """Deletes files, and does not mind those that are gone."""
        wanted = sorted(paths)
        for at in range(0, len(wanted), _DELETED_AT_ONCE):
            some = wanted[at : at + _DELETED_AT_ONCE]
            with self._translated(some[0]):
                if not self.is_local:
                    obstore.delete(self._store, some)
                    continue
                for path in some:
                    (self.path / path).unlink(missing_ok=True)
        return len(wanted)

    @property
    def _store(self) -> Any:
        return _store(self.url, self.options)

    @contextmanager
    def _translated(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """The store's errors as ours, with the address and without credentials."""
        try:
            with nullcontext() if self.is_local else watched_request(self.url):
                yield
        except BaseError as problem:
            raise self._refused(path, problem) from None
        except FileNotFoundError as problem:
            if writing:  # there is no such bucket
                raise self._refused(path, problem) from None
            raise
        except NotADirectoryError:
            raise FileNotFoundError(f"{self.url}/{path}") from None
        except PermissionError:
            raise StorageFailed(f"{self.url}/{path}: permission denied") from None

    def _refused(self, path: str, problem: Exception) -> StorageFailed:
        check = "the address, the network and the credentials (environment or storageOptions)"
        if self.is_local:
            check = "the directory, and the free space of its disk"
        return StorageFailed(
            f"{self.url}/{path}: the store refused: {said(problem)}; check {check}"
        )


@lru_cache(maxsize=64)
def _store(url: str, options: tuple[tuple[str, str], ...]) -> Any:
    if "://" not in url:
        try:
            return LocalStore(url, mkdir=True)
        except (BaseError, OSError) as problem:
            raise ConfigError(
                f"table: {url} cannot be a directory: {problem}; give another path"
            ) from None
    try:
        return open_store(url, dict(options))
    except ValueError as problem:
        raise ConfigError(
            f"table: {url} cannot be opened: {problem}; check the address, storageOptions and the "
            "variables of the environment"
        ) from None
