"""The alerts of pipelines, by the metrics of real ones: Prometheus's own tool says which fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from dashboardkit import INTERVAL, ask
from waiting import until

from upriver.cli.commands.dashboard import heartbeat
from upriver.cli.main import cli
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.progress_file import ProgressFile
from upriver.tables.places import TablePlace
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")

NAMES = ("Gone", "Stopped", "Waiting", "Behind")


@contextmanager
def mirrored(
    producer: TemporaryProducer, table: Path
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """A process that mirrors a bucket, and the metrics of its table on a dashboard."""
    place = TablePlace.parse(table)
    words = [sys.executable, "-m", "upriver", "mirror", producer.source, str(table)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        file = ProgressFile(place.progress, "orders", lambda: heartbeat(place.storage))
        try:
            with (
                Collector(None, [file.sample], interval=INTERVAL) as collector,
                DashboardServer(collector, port=0) as page,
            ):
                yield process, lambda: ask(page.url, "/metrics").body.decode()
        finally:
            process.kill()


def state(metrics: str) -> str | None:
    found = re.search(r'^upriver_pipeline_state{state="(\w+)",table="orders"} 1', metrics, re.M)
    return found[1] if found else None


def lag(metrics: str) -> str | None:
    found = re.search(r'^upriver_pipeline_lag_changes{table="orders"} (\S+)', metrics, re.M)
    return found[1] if found else None


def fires(folder: Path, metrics: str) -> list[str]:
    """Which of the alerts fire if a dashboard shows these metrics for half an hour."""
    rules = folder / "alerts.yml"
    rules.write_text(CliRunner().invoke(cli, ["dashboard", "--export", "alerts"]).output)
    lines = [line for line in metrics.splitlines() if line.startswith("upriver_pipeline_")]
    series = [dict(zip(("series", "values"), line.rsplit(" ", 1), strict=True)) for line in lines]
    for one in series:
        one["values"] += "x30"
    firing = []
    for name in NAMES:
        alert = f'count(ALERTS{{alertname="UpriverPipeline{name}",alertstate="firing"}})'
        expected = [{"labels": "{}", "value": 1}]
        case = {"expr": alert, "eval_time": "29m", "exp_samples": expected}
        tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [case]}]
        file = folder / "case.yml"  # JSON is YAML too
        file.write_text(json.dumps({"rule_files": [str(rules)], "tests": tests}))
        tested = subprocess.run(
            ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
        )
        if tested.returncode == 0:
            firing.append(name)
        else:
            assert "got:" in tested.stdout + tested.stderr, tested
    return firing


@pytest.mark.story
def test_an_alert_tells_of_a_pipeline_that_waits_stops_or_is_gone(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    with TemporaryProducer(vbuckets=4) as producer:
        for number in range(20):
            producer.write(b"k%d" % number, b"{}", number % 4)
        with mirrored(producer, table) as (process, metrics):
            until(lambda: (state(metrics()), lag(metrics())) == ("idle", "0.0"))
            calm = metrics()
            assert fires(tmp_path, calm) == []
            behind = re.sub(r"(pipeline_lag_\w+{[^}]*}) \S+", r"\1 1000", calm)
            assert fires(tmp_path, behind) == ["Behind"]
            process.kill()  # while it was equal
            until(lambda: state(metrics()) == "gone")
            assert lag(metrics()) is None
            assert fires(tmp_path, metrics()) == ["Gone"]
        with mirrored(producer, table) as (process, metrics):
            until(lambda: state(metrics()) == "idle")
            producer.stop()
            until(lambda: state(metrics()) == "waiting" and lag(metrics()) is None)
            assert fires(tmp_path, metrics()) == ["Waiting"]
            process.terminate()
            until(lambda: state(metrics()) == "stopped")
            assert fires(tmp_path, metrics()) == ["Stopped"]
            _, said = process.communicate()
    assert re.search(r"INFO upriver\S+: mirror of default at \S+/orders: started, run \w+\n", said)
    assert re.search(r"WARNING upriver\S+: waiting for default for \d s: 127\.0\.0\.1:\d+ ", said)
    assert re.search(r"INFO upriver\S+: mirror of default at \S+/orders: stopped\n", said)
