"""`ObjectGroupStore`: the cells of groups in an object store, by puts that only create.

S3, Azure and Google Cloud Storage have such puts, and list what was put at once. Credentials come
from the variables of the environment that each kind of store has (``AWS_ACCESS_KEY_ID``,
``AZURE_STORAGE_ACCOUNT_KEY``, ``GOOGLE_APPLICATION_CREDENTIALS``, ...).
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
from .cells import MAX_CELL
from .create_only_store import NumberedStore

with extra("objects"):
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import from_url

#: The kinds of addresses that are understood.
SCHEMES: Final = frozenset({"s3", "s3a", "az", "azure", "adl", "abfs", "abfss", "gs"})
#: Seconds for one request with all its repetitions: a lease must not wait for longer.
_REQUEST: Final = 5.0
#: Variables that allow a store without TLS, for tests.
_ALLOW_HTTP: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
_SHOWN: Final = 300


class ObjectGroupStore(NumberedStore):
    """Keeps the cells of groups below a prefix of an object store, such as ``s3://bucket/groups``.

    ``options`` are those of the store, such as ``region`` or ``endpoint``, over its variables.
    """

    def __init__(self, url: str, **options: Any) -> None:
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in SCHEMES or not rest.strip("/"):
            known = ", ".join(sorted(SCHEMES))
            raise ConfigError(
                f"{url!r} is no object store; its address begins with {known} and ://"
            )
        self.url = url.rstrip("/")
        self._is_proven = False
        made: Any = from_url  # its options are typed for each kind of store
        plain = any(os.environ.get(name, "").lower() == "true" for name in _ALLOW_HTTP)
        try:
            self._store = made(
                self.url,
                client_options={"timeout": f"{_REQUEST:g}s", "allow_http": plain},
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_REQUEST)},
                **options,
            )
        except (BaseError, ValueError, TypeError) as problem:
            raise ConfigError(f"{self.url} cannot be used: {_text(problem)}") from None

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
            try:
                obstore.put(self._store, file, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

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
            raise ConfigError(f"{self.url} cannot be {done}: {_text(problem)}") from None
        except BaseError as problem:
            raise ConnectionFailed(
                f"cannot be {done}: {_text(problem)}",
                "see the address and the credentials in the environment",
                where=f"the object store {self.url}",
            ) from None


def _text(problem: Exception) -> str:
    lines = (line for line in str(problem).splitlines() if line.strip())
    return next(lines, type(problem).__name__)[:_SHOWN]
