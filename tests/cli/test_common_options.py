"""What every command has: one set of flags, one format of logs, one way to be interrupted."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest
from running import Running, finished, running

import upriver.logs
from upriver.cli.common_options import COMMON_OPTIONS
from upriver.cli.main import cli
from upriver.model import VBucketState
from upriver.testing import TemporaryProducer

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ upriver[\w.]*: .+")


def commands(group: click.Group, context: click.Context) -> list[click.Command]:
    found: list[click.Command] = []
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        assert inner is not None
        found += commands(inner, context) if isinstance(inner, click.Group) else [inner]
    return found


def test_every_command_has_the_same_flags() -> None:
    found = commands(cli, click.Context(cli))
    assert len(found) > 25
    for one in found:
        assert set(COMMON_OPTIONS) <= set(one.params), one.name
        flags = [flag for option in one.params for flag in option.opts]
        assert len(flags) == len(set(flags)), one.name
        if "--allow-plain" in flags:
            of_servers = {"--user", "--password-file", "--ca", "--insecure", "--timeout"}
            assert of_servers <= set(flags), one.name
            if one.name != "dashboard":  # a page of any number of sources, without a result
                assert {"source", "--json"} <= set(flags), one.name


def test_logs_have_one_format_for_people_and_one_for_programs() -> None:
    words = ("serve", "--vbuckets", 4, "--port", 0)
    with running(*words, "-v") as one:
        one.line()
        _, _, err = one.stop(signal.SIGTERM)
    assert err
    assert all(LINE.fullmatch(line) for line in err.splitlines()), err
    with running(*words, "-v", "--log-json") as one:
        one.line()
        _, _, err = one.stop(signal.SIGTERM)
    for record in map(json.loads, err.splitlines()):
        assert record.keys() == {"time", "level", "logger", "message"}
        assert record["level"] in ("info", "warning")
    with running(*words, "-v", "--quiet") as one:
        one.line()
        assert one.stop(signal.SIGTERM)[2] == ""


def test_an_exception_is_part_of_a_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        upriver.logs.configure_logging(as_json=True)
        try:
            raise ValueError("line one\nline two")
        except ValueError:
            logging.getLogger("upriver.test").exception("it %s", "failed")
        (line,) = capsys.readouterr().err.splitlines()
        record = json.loads(line)
        assert record["message"] == "it failed"
        assert "line two" in record["exception"]
    finally:
        assert upriver.logs._handler is not None
        root.removeHandler(upriver.logs._handler)
        root.setLevel(before)


def test_debug_shows_a_traceback_wherever_it_stands() -> None:
    nowhere = "couchbase://127.0.0.1:1/default"
    for words in (["--debug", "nodes", nowhere], ["nodes", nowhere, "--debug"]):
        assert "Traceback" in finished(*words).stderr
    told = finished("nodes", nowhere, "--timeout", "1s")
    assert told.returncode == 1
    assert told.stderr.startswith("error: ")


def high_seqno(producer: TemporaryProducer) -> int:
    ((_, high),) = producer.bucket.high_seqnos(frozenset({VBucketState.ACTIVE}))
    return high or 0


def test_an_interrupted_load_says_how_much_was_written() -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        words = ("load", producer.source, "--docs", 1_000_000, "--rate", 500)
        with running(*words) as loading:
            while high_seqno(producer) < 500:
                assert loading.process.poll() is None
            status, out, err = loading.stop()
        assert (status, out) == (130, "")
        found = re.fullmatch(r"interrupted: the server has accepted (\d+) documents\n", err)
        assert found is not None, err
        assert 1 <= int(found[1]) <= high_seqno(producer)


@pytest.mark.parametrize("name", ["nodes", "set", "tail"])
def test_a_command_that_waits_can_be_interrupted(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"couchbase://127.0.0.1:{silent.getsockname()[1]}/default"
        more = ("key", "value") if name == "set" else ()
        with running(name, where, *more, "--timeout", "1h", "-q") as waiting:
            connection, _ = silent.accept()
            with connection:
                status, out, err = waiting.stop()
        assert (status, out) == (130, ""), err
        assert re.fullmatch(r"interrupted: .+\n", err), err


def test_a_signal_that_interrupts_no_call_ends_a_wait() -> None:
    """As one that comes just before the call: here another thread of the process gets it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"couchbase://127.0.0.1:{silent.getsockname()[1]}/default"
        program = f"""
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
sys.argv = ["upriver", "nodes", {where!r}, "--timeout", "1h", "-q"]
from upriver.cli.main import main
main()
"""
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                status, out, err = Running(process).stop()
    assert (status, out) == (130, "")
    assert re.fullmatch(r"interrupted: .+\n", err), err


def test_a_page_that_is_interrupted_says_so() -> None:
    with running("dashboard", "http://127.0.0.1:1", "--port", 0) as page:
        assert page.line().startswith("dashboard http://")
        status, _, err = page.stop()
    assert status == 130
    assert err.splitlines()[-1].startswith("interrupted: ")


def test_an_interrupted_pipeline_says_what_it_did(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        producer.write(b"key", b"{}")
        table = tmp_path / "documents"
        with running("mirror", producer.source, table) as mirror:
            while not (table / "_upriver" / "progress.jsonl").exists():
                with suppress(subprocess.TimeoutExpired):
                    mirror.process.wait(0.1)
                assert mirror.process.poll() is None, mirror.err.read()
            status, out, _ = mirror.stop()
    assert status == 130
    assert re.fullmatch(r"stopped: 1 change in 1 batch and .+\n", out), out
