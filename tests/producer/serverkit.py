"""What the tests of whole servers share: users, certificates, a process for one, documents."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
from talk import Talk

from upriver.errors import Status
from upriver.producer.bootstrap.users import MIN_ITERATIONS, Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.wire import kv_messages as kv

#: The password of every user of `users_file`.
SECRET = "correct horse battery staple"


def users_file(
    directory: Path, people: Mapping[str, tuple[Role, ...]], *, bucket: str = "default"
) -> Path:
    """Users with these roles in one bucket."""
    users = Users()
    for name, roles in people.items():
        grants = [Grant(role, bucket) for role in roles]
        users.add(name, SECRET, *grants, iterations=MIN_ITERATIONS)
    path = directory / "users.json"
    users.save(path)
    return path


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, and of the certificates that it gave to a server and a client."""

    authority: Path
    server: Path
    client: Path

    @classmethod
    def made_in(cls, home: Path) -> Self:
        made = cls(home / "authority.pem", home / "server.pem", home / "client.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(made.authority)
        for name, path in (("127.0.0.1", made.server), ("client@example.org", made.client)):
            authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)
        return made

    def settings(self, **more: Any) -> ServerSettings:
        """Of a server that encrypts."""
        return ServerSettings(certificate=self.server, key=self.server, **more)


class ServerProcess:
    """``upriver serve`` over a directory, to be killed and looked at from outside.

    It has ``host`` and ``port`` as a `TemporaryProducer` does.
    """

    def __init__(self, data: Path, *, vbuckets: int = 4) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "upriver", "serve", "--data", str(data)),
                *("--port", "0", "--vbuckets", str(vbuckets)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()  # serving couchbase://HOST:PORT/BUCKET (...)
        self.host, _, port = ready.split()[1].split("/")[2].partition(":")
        self.port = int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9: no handler runs, nothing is flushed."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def resident(self) -> int:
        """Bytes of memory that it has now."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is gone")


def load(server: ServerProcess, keys: Iterable[bytes], value: bytes) -> None:
    """Writes documents to vbucket 0 and returns when all of them are there."""
    with Talk(server) as talk:
        for key in keys:
            talk.send(kv.Set(key=key, value=value, quiet=True))
        assert talk.ask(kv.Noop()).status is Status.SUCCESS  # only a refused write is answered
