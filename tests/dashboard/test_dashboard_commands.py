"""``upriver serve --dashboard`` and ``upriver dashboard`` as processes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from dashboardkit import PATIENCE, ask, seen, watched

from upriver.cli.commands.dashboard import dashboard
from upriver.cli.main import cli
from upriver.errors import ConfigError
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

SERVE = "from upriver.cli.main import main; main()"
DASHBOARD = "from upriver.cli.commands.dashboard import dashboard; dashboard()"
SAID = re.compile(r"dashboard (http://127\.0\.0\.1:\d+/)\n")


@contextmanager
def started(code: str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed when the block ends, or when it hangs."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


def address(process: subprocess.Popen[str]) -> str:
    """What it says that its page is at."""
    assert process.stdout is not None
    line = process.stdout.readline()
    said = SAID.fullmatch(line)
    if said is None:
        process.kill()
        pytest.fail(f"it said {line!r}: {process.communicate()[1]}")
    return said[1]


def stopped(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


def test_a_server_with_a_page_serves_both_and_stops_cleanly(tmp_path: Path) -> None:
    words = ("serve", "--port", "0", "--vbuckets", "8", "--dashboard", "0")
    with started(SERVE, *words) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving couchbase://127.0.0.1:")
        url = address(server)
        figures = seen(url)["server"]
        assert figures is not None
        assert figures["buckets"][0]["vbuckets"]["state"] == "a" * 8
        assert ask(url, "/health").status == 200
        # and another process watches it, with a table beside
        (tmp_path / "orders" / "_upriver").mkdir(parents=True)
        with started(DASHBOARD, "--port", "0", url, tmp_path / "orders") as watcher:
            there = address(watcher)
            document = seen(there)
            assert [one["name"] for one in document["pipelines"]] == ["orders"]
            assert document["server"] is not None
            assert document["server"]["started"] == figures["started"]
            assert stopped(watcher) == (0, "", "")
        assert stopped(server) == (0, "", "")


def test_a_file_of_options_can_ask_for_the_page(tmp_path: Path) -> None:
    config = tmp_path / "producer.toml"
    config.write_text('port = 0\nvbuckets = 4\ndashboard = 0\n"dashboard-host" = "127.0.0.1"\n')
    with started(SERVE, "serve", "--config", config) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert ask(address(server), "/").status == 200


def test_a_port_that_is_taken_ends_the_server_with_one_line() -> None:
    with started(SERVE, "serve", "--port", "0", "--vbuckets", "4", "--dashboard", "0") as first:
        assert first.stdout is not None
        first.stdout.readline()
        port = address(first).rpartition(":")[2].strip("/")
        with started(
            SERVE, "serve", "--port", "0", "--vbuckets", "4", "--dashboard", port
        ) as second:
            output, errors = second.communicate(timeout=PATIENCE)
        assert (second.returncode, output) == (1, "")
        assert errors.startswith(f"error: the dashboard cannot listen on 127.0.0.1:{port}")
        assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("/nowhere/at/all",), "/nowhere/at/all is not a table of a pipeline"),
        (("http://h:1", "http://h:2"), "one page shows one server"),
        (("ftp://h/x",), "give directories of tables, or http://HOST:PORT"),
        (("http://",), "is not the URL of a dashboard"),
    ],
)
def test_what_cannot_be_watched_is_a_clear_error(words: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(dashboard, words)
    assert isinstance(result.exception, ConfigError)
    assert problem in str(result.exception)


def test_the_port_may_be_left_out_or_must_be_one() -> None:
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert "--dashboard [PORT]" in shown
    refused = CliRunner().invoke(cli, ["serve", "--dashboard", "70000"])
    assert refused.exit_code == 2
    # without a number the next option is not taken for one
    left_out = CliRunner().invoke(cli, ["serve", "--dashboard", "--vbuckets", "0"])
    assert "Invalid value for '--vbuckets'" in left_out.output


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts_and_the_metrics(tmp_path: Path) -> None:
    rules = tmp_path / "upriver-alerts.yml"
    printed = CliRunner().invoke(cli, ["dashboard", "--export", "alerts"])
    rules.write_text(printed.output)
    checked = subprocess.run(
        ["promtool", "check", "rules", rules], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "12 rules found" in checked.stdout
    with TemporaryProducer(vbuckets=2) as producer, watched(producer) as url:
        linted = subprocess.run(
            ["promtool", "check", "metrics"],
            input=ask(url, "/metrics").body,
            capture_output=True,
            check=False,
        )
    assert linted.returncode == 0, linted.stdout + linted.stderr
