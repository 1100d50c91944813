"""The documentation of metrics and the Grafana dashboard say what the code does."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from upriver.dashboard.metrics import METRICS, reference

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


def test_the_page_about_metrics_is_made_from_the_table() -> None:
    assert DOCUMENTED.read_text() == reference(), (
        "write upriver.dashboard.metrics.reference() to docs/reference/metrics.md"
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
        names = re.findall(r"upriver_\w+", expression)
        assert names, expression
        assert set(names) <= LABELS.keys(), expression
        known = INSTANCE.union(*(LABELS[name] for name in names))
        for matcher in re.findall(r"\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=~", matcher)) <= known, expression
        for by in re.findall(r"by \((\w+)\)", expression):
            assert by in known, expression


def test_grafana_shows_every_metric_that_can_say_something_is_wrong() -> None:
    asked = " ".join(expressions())
    for word in ("lag", "rollbacks", "branches", "dead_letters", "healthy", "delay"):
        for name in (name for name in LABELS if word in name):
            assert name in asked


def test_counters_are_asked_for_as_rates() -> None:
    for expression in expressions():
        for name in re.findall(r"upriver_\w+_total", expression):
            assert re.search(rf"(rate|increase)\({name}", expression), expression
