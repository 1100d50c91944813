"""`ObjectGroupStore`: the cells of groups in an object store, by puts that only create.

S3, Azure and Google Cloud Storage have such puts, and list what was put at once. Credentials come
from the variables of the environment that each kind of store has (`object_stores`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from ..._extras import extra
from ...errors import ConfigError, ConnectionFailed
from ...files.object_stores import (
    SCHEMES,
    is_object_store,
    open_store,
    put_new,
    said,
    store_options,
)
from .cells import MAX_CELL
from .create_only_store import NumberedStore

with extra("objects"):
    import obstore
    from obstore.exceptions import BaseError

#: Seconds for one request with all its repetitions: a lease must not wait for longer.
_REQUEST: Final = 5.0


class ObjectGroupStore(NumberedStore):
    """Keeps the cells of groups below a prefix of an object store, such as ``s3://bucket/groups``.

    ``options`` are those of the store, such as ``region`` or ``endpoint``, over its variables.
    What is no text, number or flag, such as ``credential_provider``, is passed to `obstore`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        if not is_object_store(url):
            known = ", ".join(sorted(SCHEMES))
            raise ConfigError(
                f"{url!r} is no object store; its address begins with {known} and ://"
            )
        self.url = url.rstrip("/")
        self._is_proven = False
        plain = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
            if isinstance(value, str | int | float)
        }
        try:
            self._store = open_store(
                self.url,
                store_options(self.url, plain, os.environ),
                timeout=f"{_REQUEST:g}s",
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_REQUEST)},
                **{name: value for name, value in options.items() if name not in plain},
            )
        except ValueError as problem:
            raise ConfigError(f"{self.url} cannot be used: {problem}") from None

    def __str__(self) -> str:
        return self.url

    def _create(self, file: str, content: bytes) -> bool:
        if not self._is_proven:
            self._prove()
        return self._put_new(file, content)

    def _prove(self) -> None:
        """Raises ConfigError if the store overwrites what it should only create.

        The first answer does not matter: where it is lost, the request is repeated, and refused.
        """
        probe = f"probe/{secrets.token_hex(8)}"
        try:
            self._put_new(probe, b"")
            overwrites = self._put_new(probe, b"")
        finally:
            self._delete(probe)
        if overwrites:
            raise ConfigError(
                f"{self.url} overwrites an object although it was asked to create one; members of "
                "a group cannot meet there"
            )
        self._is_proven = True

    def _put_new(self, file: str, content: bytes) -> bool:
        with self._told("written"):
            return put_new(self._store, file, content)

    def _load(self, file: str) -> bytes | None:
        with self._told("read"):
            try:
                return bytes(obstore.get_range(self._store, file, start=0, length=MAX_CELL))
            except FileNotFoundError:
                return None

    def _delete(self, file: str) -> None:
        with self._told("deleted"):
            try:
                obstore.delete(self._store, file)
            except FileNotFoundError:
                return

    def _names(self, cell: str) -> Iterator[str]:
        with self._told("listed"):
            for chunk in obstore.list(self._store, f"{cell}/"):
                for one in chunk:
                    yield one["path"].rpartition("/")[2]

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """The store's errors as ours."""
        try:
            yield
        except FileNotFoundError as problem:
            raise ConfigError(f"{self.url} cannot be {done}: {said(problem)}") from None
        except BaseError as problem:
            raise ConnectionFailed(
                f"cannot be {done}: {said(problem)}",
                "see the address and the credentials in the environment",
                where=f"the object store {self.url}",
            ) from None
