"""The documentation of metrics and the Grafana dashboard say what the code does."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from upriver.cli.main import cli
from upriver.dashboard.prometheus_metrics import METRICS, reference

DOCUMENTED = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
GRAFANA = json.loads((files("upriver.dashboard") / "grafana.json").read_text())
LABELS = {row.name: set(row.labels) for row in METRICS}
#: Which Prometheus adds to every series.
INSTANCE = {"instance", "job"}


def expressions() -> list[str]:
    """Everything in the Grafana dashboard that asks Prometheus."""
    found: list[str] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            for name in ("expr", "definition"):
                if isinstance(part.get(name), str):
                    found.append(part[name])
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(GRAFANA)
    return found


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression asks for; the series of a histogram are one metric."""
    found = set(re.findall(r"upriver_\w+", expression))
    return {re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name) for name in found}


def test_the_page_about_metrics_is_made_from_the_table() -> None:
    assert DOCUMENTED.read_text() == reference(), (
        "write upriver.dashboard.prometheus_metrics.reference() to docs/reference/metrics.md"
    )


def test_names_are_unique_and_follow_the_rules_of_prometheus() -> None:
    assert len(LABELS) == len(METRICS)
    for row in METRICS:
        assert re.fullmatch(r"upriver_[a-z_]+", row.name)
        assert row.help.endswith(".")
        assert not {"vbucket", "connection", "key"} & set(row.labels)


def test_grafana_asks_only_for_what_there_is() -> None:
    asked = expressions()
    assert len(asked) > 20
    for expression in asked:
        names = metrics_in(expression)
        assert names, expression
        assert set(names) <= LABELS.keys(), expression
        known = (INSTANCE | {"le"}).union(*(LABELS[name] for name in names))
        for matcher in re.findall(r"\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=~", matcher)) <= known, expression
        for by in re.findall(r"by \(([\w, ]+)\)", expression):
            assert set(by.split(", ")) <= known, expression


def test_grafana_shows_every_metric_that_can_say_something_is_wrong() -> None:
    asked = " ".join(expressions())
    for word in ("lag", "rollbacks", "branches", "dead_letters", "healthy", "delay"):
        for name in (name for name in LABELS if word in name):
            assert name in asked


def test_counters_are_asked_for_as_rates() -> None:
    for expression in expressions():
        for name in re.findall(r"upriver_\w+_total", expression):
            assert re.search(rf"(rate|increase)\({name}", expression), expression


ALERTS = files("upriver.dashboard") / "alerts.yml"


def test_alerts_ask_only_for_what_there_is_and_cover_what_can_go_wrong() -> None:
    rules = [line.partition("expr:")[2] for line in ALERTS.read_text().splitlines()]
    asked = set().union(*(metrics_in(rule) for rule in rules))
    assert asked <= LABELS.keys()
    for word in (
        "reader_lag_seconds",
        "pipeline_lag_seconds",
        "dead_letters",
        "healthy",
        "branches",
        "disk_free",
    ):
        assert any(word in name for name in asked), word


def test_both_files_are_printed_by_the_command() -> None:
    grafana = CliRunner().invoke(cli, ["dashboard", "--export", "grafana"])
    assert json.loads(grafana.output) == GRAFANA
    nothing = CliRunner().invoke(cli, ["dashboard"])
    assert nothing.exit_code == 2
    assert "--export" in nothing.output
