"""``upriver serve`` as a process: ready, working, stopped, started again, refused."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import write_certificates
from click.testing import CliRunner
from talk import PATIENCE, Talk

from upriver.cli.main import cli
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.blocking_connection import BlockingConnection
from upriver.consumer.transport.connection_string import Source
from upriver.errors import ConfigError, Status
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.store import Store
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m

READY = re.compile(r"serving (\S+) \((\d+) vbuckets\)\n")


@dataclass
class Served:
    """A process that says it is ready, and what it said."""

    process: subprocess.Popen[str]
    address: str
    vbuckets: int

    @property
    def source(self) -> Source:
        return Source.parse(self.address)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Its exit status, and what it said after it was ready."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "upriver", "serve", *map(str, arguments)]


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Served]:
    """A real process with few vbuckets on a free port, unless told otherwise."""
    words = command("--port", "0", *arguments)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = READY.fullmatch(process.stdout.readline())
            if said is None:
                process.kill()
                pytest.fail(f"not ready: {process.communicate()[1]}")
            yield Served(process, said[1], int(said[2]))
        finally:
            process.kill()


def refused(*arguments: str | Path, status: int = 1) -> str:
    """The one line with which a process that does not start ends."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with serving("--vbuckets", "4", "--bucket", "shop") as served:
        assert served.source.bucket == "shop"
        assert served.source.host == "127.0.0.1"
        assert served.vbuckets == 4
        with Talk(served.source) as writer, Talk(served.source) as reader:
            written = writer.ask(kv.Set(key=b"k", value=b"v", vbucket=3))
            assert written.status is Status.SUCCESS
            reader.open()
            assert (
                reader.ask(m.StreamRequest(vbucket=3, start=0, end=2**64 - 1)).status
                is Status.SUCCESS
            )
            assert reader.read_until(m.Mutation)[-1].value == b"v"
            # with a stream open and nobody reading it any more
            status, out, err = served.stop(number)
            assert out == ""
            if number == signal.SIGTERM:
                assert (status, err) == (0, "")
            else:
                assert status == 130
                assert re.fullmatch(r"interrupted: served for \d+ s\n", err)
            assert reader.is_closed()
            assert writer.is_closed()


@pytest.mark.story
def test_documents_survive_a_restart_where_they_have_a_place(tmp_path: Path) -> None:
    with serving("--data", tmp_path / "data", "--vbuckets", "4") as served:
        with Talk(served.source) as talk:
            talk.ask(kv.Set(key=b"k", value=b"v", vbucket=1))
        assert served.stop() == (0, "", "")
    # the number of vbuckets need not be repeated
    with serving("--data", tmp_path / "data") as served:
        assert served.vbuckets == 4
        with Talk(served.source) as talk:
            assert talk.ask(kv.Get(key=b"k", vbucket=1)).value == b"v"
        line = refused("--port", "0", "--data", tmp_path / "data")
        assert f"{tmp_path / 'data'} is in use by " in line
        assert str(served.process.pid) in line
        with Talk(served.source) as talk:
            assert talk.ask(kv.Get(key=b"k", vbucket=1)).value == b"v"
    line = refused("--port", "0", "--data", tmp_path / "data", "--vbuckets", "8")
    assert "vbuckets is 8, but the bucket default was created with 4" in line


def test_document_004_can_be_followed_and_its_refusals_are_logged() -> None:
    asked = m.StreamRequest(vbucket=0, start=0, end=0, snapshot_start=0, snapshot_end=0, opaque=9)
    with serving("--vbuckets", "1", "--end-zero-is-no-end") as served:
        with Talk(served.source) as talk, Talk(served.source) as writer:
            talk.open()
            talk.send(asked)
            assert isinstance(talk.read(), m.StreamAccepted)
            writer.ask(kv.Set(key=b"k", value=b"v", vbucket=0))
            assert talk.read_until(m.Mutation)[-1].opaque == 9
            refused = talk.ask(m.StreamRequest(vbucket=0, start=3, end=2))
            assert refused.status is Status.RANGE
        _, _, errors = served.stop()
    assert "the stream request of vbucket 0 (draft dcp) is refused with RANGE: start 3" in errors


@pytest.mark.parametrize("limit", [resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE])
def test_writes_go_on_without_a_restart_when_there_is_room_again(
    tmp_path: Path, limit: int
) -> None:
    with serving("--data", tmp_path / "data", "--vbuckets", "4") as served:
        pid = served.process.pid
        written: list[bytes] = []
        with ExitStack() as open_connections:
            talk = open_connections.enter_context(Talk(served.source))

            def write(number: int) -> Status | None:
                """The answer; None if the connection was closed: the result is unknown."""
                nonlocal talk
                key = b"k%d" % number
                try:
                    answer = talk.ask(kv.Set(key=key, value=os.urandom(200_000), vbucket=1))
                except (EOFError, OSError):
                    talk = open_connections.enter_context(Talk(served.source))
                    return None
                if answer.status is Status.SUCCESS:
                    written.append(key)
                assert isinstance(answer, m.Response)
                return answer.status

            assert write(0) is Status.SUCCESS
            before = resource.prlimit(pid, limit)
            in_use = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            narrow = in_use if limit == resource.RLIMIT_NOFILE else 3_000_000
            resource.prlimit(pid, limit, (narrow, before[1]))
            refusals = (write(number) for number in range(1, 10_000))
            assert next(status for status in refusals if status is not Status.SUCCESS) is None
            assert write(10_000) is Status.TEMPORARY_FAILURE
            assert talk.ask(kv.Get(key=b"k0", vbucket=1)).status is Status.SUCCESS
            resource.prlimit(pid, limit, before)
            deadline = time.monotonic() + PATIENCE
            while (status := write(20_000)) is not Status.SUCCESS:
                assert status in (Status.TEMPORARY_FAILURE, None)
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for key in written:
                assert talk.ask(kv.Get(key=key, vbucket=1)).status is Status.SUCCESS
        code, _, said = served.stop()
    assert code == 0
    reasons = said.splitlines()
    assert sum("refuses writes until this is mended" in line for line in reasons) == 1
    assert sum("takes writes again" in line for line in reasons) == 1
    assert len(reasons) <= 3, said  # maintenance may have met it too
    with Store(tmp_path / "data") as store:
        assert store.bucket("default").verify() == []


def test_documents_are_gone_where_they_have_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving("--vbuckets", "4") as served:
        assert len(list(tmp_path.iterdir())) == 1
        assert served.stop() == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--port", str(port), "--vbuckets", "4")
    assert f"cannot listen on 127.0.0.1:{port}: " in line
    assert "in use" in line


def test_a_file_with_options(tmp_path: Path) -> None:
    config = tmp_path / "producer.toml"
    config.write_text(f"bucket = 'shop'\nvbuckets = 8\ndata = '{tmp_path / 'data'}'\n")
    with serving("--config", config, "--bucket", "given") as served:
        assert served.source.bucket == "given"
        assert served.vbuckets == 8
        assert (tmp_path / "data").is_dir()
        assert served.stop() == (0, "", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "prot is not an option of serve; did you mean port?"),
        ("xyz = 1", "xyz is not an option of serve; there are advertise, bucket, "),
        ("config = 'x'", "config is not an option of serve"),
        ("port = [1]", "port must be a text, a number or a boolean"),
        ("port = ", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "producer.toml"
    config.write_text(text)
    result = CliRunner().invoke(cli, ["serve", "--config", str(config)])
    assert isinstance(result.exception, ConfigError)
    assert str(config) in str(result.exception)
    assert said in str(result.exception)


def test_a_value_of_a_file_is_checked_as_one_on_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "producer.toml"
    config.write_text("port = 'eleven'")
    result = CliRunner().invoke(cli, ["serve", "--config", str(config)])
    assert result.exit_code == 2
    assert "'eleven' is not a valid integer" in result.output


def test_others_can_reach_it_only_with_users_or_when_told_so(tmp_path: Path) -> None:
    line = refused("--host", "0.0.0.0", "--port", "0", "--vbuckets", "4")
    assert "--open-to-all" in line
    with serving("--host", "0.0.0.0", "--vbuckets", "4", "--open-to-all") as served:
        assert served.address.startswith("couchbase://0.0.0.0:")
        assert served.stop()[0] == 0


def test_users_and_tls(tmp_path: Path) -> None:
    users = Users()
    users.add("writer", "secret", Grant(Role.WRITE_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    tls = write_certificates(tmp_path)
    files = (
        *("--users", tmp_path / "users.json"),
        *("--certificate", tls.certificate),
        *("--key", tls.key),
    )
    with serving("--vbuckets", "4", *files) as served:
        assert served.source.tls
        access = Access(user="writer", password="secret", authority=tls.authority)
        with BlockingConnection(served.source.hosts[0], served.source, access) as link:
            written = link.ask(kv.Set(key=b"k", value=b"v"))
            assert written.status is Status.SUCCESS
        assert served.stop()[0] == 0


def test_ipv6_addresses_are_written_so_that_they_can_be_read() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    with serving("--host", "::1", "--vbuckets", "4") as served:
        assert served.source.host == "::1"
        with Talk(served.source) as talk:
            assert talk.ask(kv.Noop()).status is Status.SUCCESS
        assert served.stop() == (0, "", "")
