"""The commands that run a pipeline: they show a bar while it catches up, else a line of status."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from .common_options import counted, is_quiet
from .setting_options import (
    config_option,
    json_option,
    otel_option,
    settings_given,
    source_argument,
    source_settings,
    spark_options,
)
from .spark_process import spark_when_needed, stop_requests
from .wait_messages import waiting_for

if TYPE_CHECKING:
    from ..tables.pipeline import Pipeline
    from ..tables.progress_log import PipelineStatus

#: What says now and then how a pipeline goes. On a terminal its status does.
_PIPELINE_LOG: Final = "upriver.tables.pipeline_watch"
#: Seconds between two looks.
_EVERY: Final = 0.5


def pipeline_command(
    settings: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[[], Callable[..., Pipeline]]], click.Command]:
    """Makes a command of a function that returns what starts the pipeline, such as `mirror`.

    The command has the function's name and help, ``settings`` of its own, and the arguments and
    flags of every pipeline.
    """

    def command_of(starter: Callable[[], Callable[..., Pipeline]]) -> click.Command:
        @click.command()
        @source_argument
        @click.argument("table")
        @settings
        @json_option()
        @otel_option
        @source_settings
        @spark_options
        @config_option
        @wraps(starter)
        def command(source: str, table: str, as_json: bool, **options: Any) -> None:
            _run(starter(), source, table, options, as_json=as_json)

        return command

    return command_of


def _run(
    start: Callable[..., Pipeline],
    source: str,
    table: str,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Starts a pipeline with what the flags say, and shows how it goes."""
    given = settings_given(options)
    with _told_in_the_log(), spark_when_needed(f"upriver {start.__name__}", options) as spark:
        with waiting_for(lambda: _slow_store() or f"the table at {table}, the bucket, or Spark"):
            pipeline = start(spark, source=source, table=table, **given)
        _watch(pipeline, as_json=as_json)


def _slow_store() -> str:
    from ..files.slow_requests import slow_request

    slow = slow_request()
    return "" if slow is None else f"{slow[1]}, which does not answer"


@contextmanager
def _told_in_the_log() -> Iterator[None]:
    """Has lines in the log say how the pipeline goes, unless a terminal shows it."""
    log = logging.getLogger(_PIPELINE_LOG)
    before = log.level
    if not (is_quiet() or Console(stderr=True).is_terminal):
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)


def _watch(pipeline: Pipeline, *, as_json: bool) -> None:
    """Shows how it goes until it ends; Ctrl-C or SIGTERM stops it after its batch.

    After Ctrl-C the program's status is 130.
    """
    began = time.monotonic()
    console = Console(stderr=True)
    with stop_requests() as stop, _view(console, pipeline.status()) as show:
        while not stop and not pipeline.wait(_EVERY):
            show(pipeline.status())
        if stop:
            pipeline.stop()
    _summarise(pipeline.status(), time.monotonic() - began, as_json=as_json)
    if stop.status:
        raise SystemExit(stop.status)


@contextmanager
def _view(console: Console, first: PipelineStatus) -> Iterator[Any]:
    columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}"))
    if first.total is not None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
    with Progress(
        *columns, console=console, transient=True, disable=is_quiet() or not console.is_terminal
    ) as bar:
        from ..tables.pipeline_watch import line_of

        task = bar.add_task("starting", total=first.total, facts="")

        def show(status: PipelineStatus) -> None:
            if status.total is None:
                bar.update(task, description=line_of(status))
            else:
                what = status.state if status.state != "waiting" else line_of(status)
                bar.update(
                    task,
                    description=what,
                    completed=min(status.done, status.total),
                    facts=f"changes, {status.rate:.0f}/s",
                )

        yield show


def _summarise(status: PipelineStatus, seconds: float, *, as_json: bool) -> None:
    if as_json:
        record = {
            "state": status.state,
            "changes": status.rows,
            "batches": status.batches,
            "seconds": round(seconds, 3),
            "rollbacks": status.rollbacks,
            "dead_letters": status.dead_letters,
            "lag": status.lag,
            "lag_seconds": status.lag_seconds,
        }
        click.echo(json.dumps(record))
        return
    letters = f"; dead letters: {status.dead_letters}" if status.dead_letters else ""
    click.echo(
        f"{status.state}: {counted(status.rows, 'change', 'changes')} in "
        f"{counted(status.batches, 'batch', 'batches')} and {seconds:.1f} s; "
        f"rollbacks: {status.rollbacks}{letters}"
    )
