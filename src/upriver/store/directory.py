"""A store: a directory of buckets, open in one process at a time.

    lock                  the process that has it open; an advisory lock that ends with it
    store.json            the format version
    uuid                  distinguishes the store from others; made when it is first opened
    name                  the name that an administrator gave it, if any
    buckets/NAME/         settings.json, uuid, and data/, the files of RocksDB
    buckets/.making-NAME, .going-NAME    a bucket that is being created or dropped

A bucket appears and disappears with one rename, so that a crash leaves all of it or nothing. Each
bucket has its own database: dropping it removes one directory, and a bucket that is damaged or
under heavy writes does not affect the others. The cost is one sync and one write buffer per bucket.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from .. import _entropy
from .._files import replace_file, sync_directory
from ..errors import (
    ConfigError,
    Status,
    StoreClosed,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    StoreNotWritable,
    StoreOutOfFiles,
    StoreRefusal,
    StoreTooNew,
)
from .bucket import Bucket
from .bucket_settings import BucketSettings
from .rocksdb_layout import FORMAT

_NAME: Final = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,99}")
#: The most characters in the name of a store, as of a Couchbase cluster.
_MAX_STORE_NAME: Final = 256
#: Bytes of a bucket's or a store's uuid, as on Couchbase servers. It distinguishes those of the
#: same name.
_UUID_BYTES: Final = 16
#: The mode of created directories: only the owner may read the documents.
_PRIVATE: Final = 0o700
#: Error numbers for a path that cannot be a directory: part of it is a file, or its file system
#: cannot store the files.
_NO_DIRECTORY: Final = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
)
_MAKING: Final = ".making-"
_GOING: Final = ".going-"


class Store:
    """A store in a directory, opened or created. Close it, or use it in a ``with`` block."""

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = True,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """``wall`` returns the wall-clock time in nanoseconds since 1970."""
        self.path = Path(path)
        self._wall = wall
        self._open: dict[str, Bucket] = {}
        self._guard = threading.Lock()
        with _named_errors(self.path):
            if create:
                _make_directory(self.path)
            elif not self.path.is_dir():
                raise ConfigError(f"there is no store {self.path}: there is no such directory")
            self._lock = _take_lock(self.path)
            try:
                _check_format(self.path, create=create)
                #: Distinguishes this store from others, for ever.
                self.uuid = _own_uuid(self.path)
                self._name = _read_name(self.path)
                _finish_renames(self.path / "buckets")
            except BaseException:
                os.close(self._lock)
                raise

    # ---- the store itself ----------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that an administrator gave the store; empty without one."""
        return self._name

    def rename(self, name: str) -> None:
        """Gives the store a name, or with an empty one none."""
        if len(name) > _MAX_STORE_NAME or not (name.isprintable() and name.strip() == name):
            raise StoreRefusal(
                Status.INVALID,
                f"the name must be at most {_MAX_STORE_NAME} printable characters, "
                "without blanks around them",
            )
        with self._guard, _named_errors(self.path):
            self._check_open()
            replace_file(self.path / "name", name.encode())
            self._name = name

    # ---- buckets -------------------------------------------------------------------------

    def buckets(self) -> list[str]:
        """Returns the names of all buckets."""
        with _named_errors(self.path):
            return sorted(
                entry.name
                for entry in (self.path / "buckets").iterdir()
                if entry.is_dir() and not entry.name.startswith(".")
            )

    def create_bucket(
        self, name: str, settings: BucketSettings | None = None, *, uuid: str = ""
    ) -> Bucket:
        """Creates a bucket and opens it. All nodes of a cluster use one ``uuid`` for a bucket."""
        if not _NAME.fullmatch(name):
            raise StoreRefusal(
                Status.INVALID,
                f"{name!r} cannot name a bucket: 1 to 100 of A-Z a-z 0-9 . _ - %, the first no dot",
            )
        settings = settings or BucketSettings()
        with self._guard, _named_errors(self.path):
            self._check_open()
            home = self.path / "buckets" / name
            if home.exists():
                raise StoreRefusal(Status.EXISTS, f"there is a bucket {name}")
            making = home.with_name(_MAKING + name)
            making.mkdir(mode=_PRIVATE)
            try:
                (making / "data").mkdir(mode=_PRIVATE)
                replace_file(making / "settings.json", settings.dump())
                replace_file(making / "uuid", (uuid or _entropy.token_hex(_UUID_BYTES)).encode())
                quiet = replace(settings, maintenance_interval=0)
                Bucket(name, making / "data", quiet, wall=self._wall, create=True).close()
                os.rename(making, home)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
            sync_directory(home.parent)
            return self._opened(home, settings)

    def bucket(
        self, name: str, settings: BucketSettings | None = None, *, salvage: bool = False
    ) -> Bucket:
        """Returns the bucket of that name, and opens it if it is not open yet.

        ``settings`` replace the stored ones; the number of vbuckets must be the same.
        ``salvage`` opens a bucket whose log is damaged, up to the last readable entry. The rest is
        lost, so active vbuckets begin new branches.
        """
        with self._guard, _named_errors(self.path):
            self._check_open()
            bucket = self._open.get(name)
            if bucket is not None and not bucket.closed:
                return bucket
            home = self._home(name)
            stored = _load_settings(home)
            if settings is not None and settings != stored:
                if settings.vbuckets != stored.vbuckets:
                    raise ConfigError(
                        f"vbuckets is {settings.vbuckets}, but the bucket {name} was created with "
                        f"{stored.vbuckets}, which cannot be changed; leave vbuckets out"
                    )
                replace_file(home / "settings.json", settings.dump())
            return self._opened(home, settings or stored, salvage=salvage)

    def bucket_settings(self, name: str) -> BucketSettings:
        """Returns the stored settings of a bucket."""
        with self._guard, _named_errors(self.path):
            self._check_open()
            return _load_settings(self._home(name))

    def change_bucket(self, name: str, **changes: Any) -> None:
        """Stores changed settings of a bucket.

        Memory settings take effect when the bucket is next opened, all others at once.
        """
        with self._guard, _named_errors(self.path):
            self._check_open()
            home = self._home(name)
            settings = replace(_load_settings(home), **changes)
            replace_file(home / "settings.json", settings.dump())
            bucket = self._open.get(name)
            if bucket is not None:
                bucket.settings = replace(bucket.settings, **changes)

    def _opened(self, home: Path, settings: BucketSettings, *, salvage: bool = False) -> Bucket:
        bucket = self._open[home.name] = Bucket(
            home.name,
            home / "data",
            settings,
            uuid=_load_uuid(home),
            wall=self._wall,
            salvage=salvage,
        )
        return bucket

    def drop_bucket(self, name: str) -> None:
        """Closes a bucket and removes it with everything in it."""
        with self._guard, _named_errors(self.path):
            self._check_open()
            home = self._home(name)
            bucket = self._open.pop(name, None)
            if bucket is not None:
                bucket.close()
            going = home.with_name(_GOING + name)
            os.rename(home, going)
            sync_directory(home.parent)
            shutil.rmtree(going)

    def close(self) -> None:
        """Closes every bucket and releases the lock, so that another process can open the store."""
        with self._guard:
            if self._lock < 0:
                return
            for bucket in self._open.values():
                bucket.close()
            self._open.clear()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _home(self, name: str) -> Path:
        home = self.path / "buckets" / name
        if not _NAME.fullmatch(name) or not home.is_dir():
            raise StoreRefusal(Status.NO_BUCKET, f"there is no bucket {name!r}")
        return home

    def _check_open(self) -> None:
        if self._lock < 0:
            raise StoreClosed(path=str(self.path), problem="it was closed")


# ---- files -------------------------------------------------------------------------------


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Converts errors of the operating system to the store's error classes."""
    try:
        yield
    except OSError as error:
        meaning: type[StoreFull | StoreOutOfFiles | StoreNotWritable | StoreDamaged] = StoreDamaged
        if error.errno in (errno.EMFILE, errno.ENFILE):
            meaning = StoreOutOfFiles
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            meaning = StoreFull
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            meaning = StoreNotWritable
        raise meaning(path=str(path), problem=str(error)) from error


def _make_directory(path: Path) -> None:
    try:
        if not path.is_dir():
            path.mkdir(mode=_PRIVATE, parents=True)
        (path / "buckets").mkdir(mode=_PRIVATE, exist_ok=True)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            raise ConfigError(
                f"{path} cannot be a directory for data: {error.strerror}; give another one"
            ) from None
        raise


def _take_lock(path: Path) -> int:
    """Locks the store for this process. Raises `StoreLocked` with the process that holds it."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        os.close(descriptor)
        raise StoreLocked(path=str(path), holder=holder or "an unknown process") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    return descriptor


def _check_format(path: Path, *, create: bool) -> None:
    file = path / "store.json"
    if not file.exists():
        if not create or any((path / "buckets").iterdir()):
            raise StoreDamaged(path=str(path), problem="store.json is missing")
        replace_file(file, json.dumps({"format": FORMAT}).encode())
        return
    try:
        found = json.loads(file.read_bytes())["format"]
        newer = found > FORMAT
    except (ValueError, KeyError, TypeError) as problem:
        raise StoreDamaged(
            path=str(path), problem=f"store.json cannot be read: {problem!r}"
        ) from None
    if newer:
        raise StoreTooNew(path=str(path), found=found, supported=FORMAT)
    if found < FORMAT:  # older releases cannot read what is written from now on
        replace_file(file, json.dumps({"format": FORMAT}).encode())


def _finish_renames(buckets: Path) -> None:
    """Removes buckets whose creation or removal was interrupted."""
    if not buckets.is_dir():
        raise StoreDamaged(path=str(buckets.parent), problem="the directory buckets is missing")
    for entry in buckets.iterdir():
        if entry.name.startswith((_MAKING, _GOING)):
            shutil.rmtree(entry)


def _load_settings(home: Path) -> BucketSettings:
    try:
        return BucketSettings.load((home / "settings.json").read_bytes())
    except (ValueError, FileNotFoundError) as problem:
        raise StoreDamaged(
            path=str(home), problem=f"settings.json cannot be read: {problem}"
        ) from None


def _own_uuid(path: Path) -> str:
    if not (path / "uuid").exists():
        replace_file(path / "uuid", _entropy.token_hex(_UUID_BYTES).encode())
    return _load_uuid(path)


def _read_name(path: Path) -> str:
    try:
        return (path / "name").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except ValueError as problem:
        raise StoreDamaged(path=str(path), problem=f"name cannot be read: {problem}") from None


def _load_uuid(home: Path) -> str:
    try:
        uuid = (home / "uuid").read_text(encoding="ascii")
        if len(bytes.fromhex(uuid)) != _UUID_BYTES:
            raise ValueError(f"it has {len(uuid)} digits")
    except (ValueError, FileNotFoundError) as problem:
        raise StoreDamaged(path=str(home), problem=f"uuid cannot be read: {problem}") from None
    return uuid
