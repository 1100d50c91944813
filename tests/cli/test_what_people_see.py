"""What goes wrong at the front door: one line that says what and what to do, and no traceback.

Wordings that the consumer makes are checked loosely: that a line names the thing to look at.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import write_certificates
from click.testing import CliRunner
from running import ended, environment, finished, running

from upriver._extras import EXTRAS
from upriver.cli import wait_messages
from upriver.cli.main import cli
from upriver.consumer.transport.access import Access
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.embedded import Producer
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def plain() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=4) as producer:
        yield producer


def told(ran: subprocess.CompletedProcess[str], *, status: int) -> str:
    """The one line of an error; a line of what is waited for may come before it."""
    assert ran.returncode == status, ran.stderr
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("waiting for ")]
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


# ---- servers -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("tail", "--to", "now"), ("load", "--docs", "1")])
def test_tls_to_a_port_without_tls(plain: TemporaryProducer, words: tuple[str, ...]) -> None:
    address = plain.source.replace("couchbase://", "couchbases://")
    line = told(finished(words[0], address, *words[1:]), status=1)
    # the reader's wording: the least that it must say is where it could not connect
    assert re.search("TLS|cannot be reached", line)
    assert re.search(r"127\.0\.0\.1:\d+", line)


def test_a_user_without_the_role(tmp_path: Path) -> None:
    users = Users()
    users.add("writer", "secret", Grant(Role.WRITE_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    chosen = ServerSettings(users=tmp_path / "users.json")
    secret = {"UPRIVER_USER": "writer", "UPRIVER_PASSWORD": "secret"}
    with TemporaryProducer(vbuckets=4, settings=chosen) as producer:
        ran = finished("tail", producer.source, "--to", "now", **secret)
        line = told(ran, status=1)
        # the variables were heeded: it is the role that is missing, not the user
        assert re.search("access|role|denied", line, re.IGNORECASE)
        written = finished("load", producer.source, "--docs", "2", **secret)
        assert written.returncode == 0, written.stderr
        nobody = finished("load", producer.source, "--docs", "2")
        assert nobody.returncode == 1


def test_a_port_that_is_silent_is_named_while_it_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        with running("tail", f"couchbase://{where}/default", "--to", "now") as process:
            assert process.err.readline() == f"waiting for couchbase://{where}/default to answer\n"
            process.process.kill()
        line = told(finished("load", f"couchbase://{where}/default", "--docs", "1"), status=1)
        assert where in line


def test_an_object_store_that_is_silent_is_named_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {"ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        variables |= {"ALLOW_HTTP": "true", "REGION": "x"}
        variables |= {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
        for name, value in variables.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with running("mirror", "couchbase://127.0.0.1:1/b", "s3://tables/documents") as process:
            lines = process.err.readline(), process.err.readline()
            process.process.kill()
    shown, logged = sorted(lines, key=len)
    assert re.fullmatch(r"waiting for s3://tables/documents\S*, which does not answer\n", shown)
    assert re.search(r"s3://tables/documents\S*, which has not answered for 5 s\n", logged)


def test_nothing_is_said_of_what_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with wait_messages.waiting_for("it") as answered:
        answered()
    assert capsys.readouterr().err == ""


# ---- directories -------------------------------------------------------------------------


def test_directories_that_cannot_be_ones(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in ("/proc/upriver", file / "below"):
        line = told(finished("serve", "--data", path, "--port", "0"), status=1)
        assert f"{path} cannot be a directory for data" in line
        assert "damaged" not in line
        line = told(finished("cluster", "start", "--data", path), status=1)
        assert f"{path} cannot be a directory for a cluster" in line
    assert "is a file" in finished("serve", "--data", file, "--port", "0").stderr
    for name in ("report", "compact", "dashboard"):
        assert str(file) in told(finished(name, file), status=1)
    assert "is not a table" in told(finished("dashboard", tmp_path), status=1)


def test_a_file_that_the_system_refuses_is_named_in_one_line(tmp_path: Path) -> None:
    users = tmp_path / "missing" / "users.json"
    added = finished("users", "add", users, "ann", "--role", "read_stream", UPRIVER_PASSWORD="x")
    assert str(users.parent) in told(added, status=1)


# ---- extras ------------------------------------------------------------------------------


@pytest.fixture
def without_spark(tmp_path: Path) -> dict[str, str]:
    """Variables with which a process finds nothing that only the extra brings."""
    site = tmp_path / "site"
    site.mkdir()
    missing = EXTRAS["spark"] - EXTRAS["cli"]
    (site / "sitecustomize.py").write_text(
        f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(missing)}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Missing())
"""
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("mirror", "couchbase://127.0.0.1/b", "table", "--once"), 1),
        (("changelog", "couchbase://127.0.0.1/b", "table", "--once"), 1),
        (("verify", "couchbase://127.0.0.1/b", "table"), 2),
        (("compact", "table"), 1),
    ],
)
def test_a_missing_extra_is_named_by_every_command(
    without_spark: dict[str, str], words: tuple[str, ...], status: int
) -> None:
    line = told(ended(*words, **without_spark), status=status)
    assert "pip install 'upriver[spark]'" in line


def test_a_missing_extra_is_named_by_every_function(without_spark: dict[str, str]) -> None:
    code = """
import importlib
from upriver.errors import MissingExtra
import upriver.spark
calls = [upriver.spark.session, lambda: upriver.spark.register(None)]
tables = ("mirror", "changelog", "verify")
calls += [lambda name=name: getattr(upriver.spark, name) for name in tables]
modules = ("query_metrics", "pipelines", "verify_table")
calls += [lambda name=name: importlib.import_module(f"upriver.spark.{name}") for name in modules]
for call in calls:
    try:
        call()
    except MissingExtra as problem:
        assert isinstance(problem, ImportError)
        print(problem.extra)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(**without_spark),
        check=False,
    )
    assert ran.stdout.split() == ["spark"] * 8, ran.stderr


def test_commands_without_tables_need_no_extra(
    without_spark: dict[str, str], plain: TemporaryProducer
) -> None:
    for words in (("load", plain.source, "--docs", "1"), ("tail", plain.source, "--to", "now")):
        assert ended(*words, **without_spark).returncode == 0


# ---- names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("tial",), "'tail'"),
        (("dashbord", "x"), "'dashboard'"),
        (("users", "lst", "f"), "'list'"),
        (("checkpoint", "sho", "f"), "'show'"),
        (("tail", "couchbase://h/b", "--checkpiont", "f"), "--checkpoint"),
    ],
)
def test_what_is_mistyped_gets_a_suggestion(words: tuple[str, ...], meant: str) -> None:
    ran = CliRunner().invoke(cli, list(words))
    assert ran.exit_code == 2
    assert "Did you mean" in ran.output
    assert meant in ran.output


def test_what_is_like_nothing_gets_none() -> None:
    ran = CliRunner().invoke(cli, ["zzzzzz"])
    assert ran.exit_code == 2
    assert "Did you mean" not in ran.output


@pytest.mark.parametrize("name", ["tail", "check", "load", "serve", "mirror", "verify", "users"])
def test_help_loads_nothing_heavy(name: str) -> None:
    code = (
        f"import sys; sys.argv[1:] = [{name!r}, '--help']\n"
        "from upriver.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pyarrow", "pyspark", "rocksdict", "pyroaring"}
    assert not heavy & set(ran.stderr.split())


# ---- doors -------------------------------------------------------------------------------


def test_what_a_server_stores_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        words = ("--data", tmp_path / "data", "--port", "0", "--vbuckets", "4")
        with running("serve", *words) as process:
            address = process.line().split()[1]
            loaded = finished("load", address, "--docs", "3")
            assert loaded.returncode == 0, loaded.stderr
            mark = tmp_path / "mark"
            read = finished("tail", address, "--to", "now", "--checkpoint", mark)
            assert read.returncode == 0, read.stderr
            process.stop()
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert files
    for path in (tmp_path / "data", *(tmp_path / "data").rglob("*")):
        assert _mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert [_mode(path) for path in (mark, tmp_path / "mark.lock")] == [0o600, 0o600]
    mark.chmod(0o640)  # its owner shares it, and that stays
    moved = finished("checkpoint", "rewind", mark, "--beginning")
    assert moved.returncode == 0, moved.stderr
    assert _mode(mark) == 0o640


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_passwords_without_tls_are_warned_of(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    known = Users()
    known.add("reader", "secret", Grant(Role.READ_STREAM), iterations=4096)
    known.save(users)
    words = ("serve", "--port", "0", "--vbuckets", "4", "--users", users, "--host", "0.0.0.0")
    with running(*words, "--plain-without-tls") as process:
        process.line()
        status, _, said = process.stop(signal.SIGTERM)
    assert status == 0
    assert said.count("WARNING") == 2
    assert "passwords are taken without TLS" in said
    assert "documents travel without TLS" in said


def test_the_http_port_has_tls_if_the_server_has(tmp_path: Path) -> None:
    tls = write_certificates(tmp_path)
    known = Users()
    known.add("reader", "secret", Grant(Role.READ_STREAM), iterations=4096)
    known.save(tmp_path / "users.json")
    chosen = ServerSettings(
        port=0,
        http_port=0,
        users=tmp_path / "users.json",
        certificate=tls.certificate,
        key=tls.key,
    )

    def asked(port: int) -> dict[str, Any]:
        request = urllib.request.Request(f"https://127.0.0.1:{port}/pools/default/b/default")
        request.add_header("Authorization", "Basic " + b64encode(b"reader:secret").decode())
        context = Access(authority=tls.authority).tls_context()
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    async def scenario() -> None:
        async with Producer(tmp_path / "data", chosen) as producer:
            http = producer.server.http_port
            assert http is not None
            config = await asyncio.to_thread(asked, http)
            (node,) = config["nodesExt"]
            assert node["services"] == {"kvSSL": producer.port, "mgmtSSL": http}
            reader, writer = await asyncio.open_connection("127.0.0.1", http)
            writer.write(b"GET /pools HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
            assert not answer.startswith(b"HTTP")
            writer.close()

    asyncio.run(scenario())


def test_several_dashboards_find_a_port_each(tmp_path: Path) -> None:
    (tmp_path / "_upriver").mkdir()
    serve = ("serve", "--port", "0", "--vbuckets", "4", "--dashboard")
    with running(*serve) as first, running(*serve) as second:
        places = [process.line() and process.line() for process in (first, second)]
        with running("dashboard", tmp_path) as third:
            places.append(third.line())
        said = re.compile(r"dashboard http://127\.0\.0\.1:(\d+)/\n")
        ports = [int(found[1]) for line in places if (found := said.fullmatch(line))]
        assert len(set(ports)) == 3
        taken = finished("dashboard", tmp_path, "--port", str(ports[0]))
        assert f"127.0.0.1:{ports[0]}" in told(taken, status=1)
