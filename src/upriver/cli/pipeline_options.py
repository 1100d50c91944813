"""What commands that run Spark share: options, a file that can hold them, and the session.

Secrets are never among them: a password comes from the environment or from a file of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "config_option",
    "pipeline_given",
    "pipeline_options",
    "source_given",
    "source_options",
    "spark_options",
    "spark_session",
]

_Command = Callable[..., Any]

#: Bytes of a configuration file; a longer one is something else.
_MAX_CONFIG: Final = 1024 * 1024
_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
#: What may only come from the environment or from a file of its own.
_SECRETS: Final = frozenset({"password"})


def source_options(command: _Command) -> _Command:
    """Adds what is said about the bucket; the command gets ``source_given`` for ``dcp``."""
    for add in (
        click.option(
            "--option",
            "pairs",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_pairs,
            help="Any option of the format dcp.",
        ),
        click.option("--insecure", is_flag=True, help="Believe any certificate."),
        click.option(
            "--ca", type=_EXISTING_FILE, help="The authority of the server's certificate."
        ),
        click.option("--password-file", type=_EXISTING_FILE, help="Or set UPRIVER_PASSWORD."),
        click.option("--user", default="", help="Who we are, where the server has users."),
        click.option("--scope", default="", help="Only the collections of this scope."),
        click.option(
            "--collections",
            metavar="LIST",
            default="",
            help="Only these, as shop.orders,shop.people.",
        ),
    ):
        command = add(command)
    return command


def source_given(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `source_options` out, as options of the format ``dcp``."""
    named = {
        "collections": options.pop("collections"),
        "scope": options.pop("scope"),
        "user": options.pop("user"),
        "passwordFile": options.pop("password_file"),
        "caFile": options.pop("ca"),
        "insecure": options.pop("insecure"),
    }
    return {**options.pop("pairs"), **{name: value for name, value in named.items() if value}}


def pipeline_options(command: _Command) -> _Command:
    """Adds how a pipeline runs."""
    for add in (
        click.option("--json", "as_json", is_flag=True, help="The result as a JSON object."),
        click.option(
            "--keep-versions",
            metavar="TIME",
            help="How long files of older versions stay, such as 24h.  [default: 168h]",
        ),
        click.option(
            "--compact-every",
            type=click.IntRange(0),
            help="Compact files every so many batches; 0 for never.  [default: 100]",
        ),
        click.option("--trigger", metavar="TIME", help="Batches are at least this apart, as 10s."),
        click.option(
            "--max-batch",
            type=click.IntRange(1),
            help="Changes in a batch at most.  [default: 1000000]",
        ),
        click.option(
            "--checkpoint",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where positions are kept.  [default: inside the table]",
        ),
        click.option("--once", is_flag=True, help="Catch up with what is there now, and stop."),
    ):
        command = add(command)
    return command


def pipeline_given(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `pipeline_options` out, as options of a pipeline."""
    given = {
        "once": options.pop("once"),
        "checkpoint": options.pop("checkpoint"),
        "maxOffsetsPerTrigger": options.pop("max_batch"),
        "trigger": options.pop("trigger"),
        "compactEvery": options.pop("compact_every"),
        "keepVersions": options.pop("keep_versions"),
    }
    return {name: value for name, value in given.items() if value is not None}


def spark_options(command: _Command) -> _Command:
    """Adds where Spark runs."""
    command = click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_pairs,
        help="A setting of Spark.",
    )(command)
    return click.option("--master", help="Where Spark runs.  [default: local[*]]")(command)


@contextmanager
def spark_session(app: str, options: dict[str, Any]) -> Iterator[SparkSession]:
    """A session for one command; takes the options of `spark_options` out."""
    from ..spark.session import session

    config = {"spark.log.level": "ERROR", **options.pop("conf")}
    spark = session(app, master=options.pop("master"), config=config)
    try:
        yield spark
    finally:
        spark.stop()


def config_option(command: _Command) -> _Command:
    """Adds --config: a TOML file with what flags could say, by their names without the dashes."""
    return click.option(
        "--config",
        type=_EXISTING_FILE,
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="A TOML file with what flags can say; flags win.",
    )(command)


def _configured(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is None:
        return
    known = {param.name: param for param in context.command.params}
    defaults: dict[str, Any] = {}
    for name, value in _toml(file).items():
        target = "pairs" if name == "options" else _ALIASES.get(name, name.replace("-", "_"))
        if target not in known:
            raise ConfigError(f"{file}: {name} is no option of {context.command.name}")
        if target in ("pairs", "conf"):
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: {name} is a table of names and values")
            value = [f"{key}={_text(one)}" for key, one in value.items()]
        elif isinstance(value, list):
            value = ",".join(map(str, value))
        defaults[target] = value
    context.default_map = {**(context.default_map or {}), **defaults}


#: Names in a file whose flags have another one inside.
_ALIASES: Final = {"json": "as_json"}


def _toml(file: Path) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            content = opened.read(_MAX_CONFIG + 1)
        if len(content) > _MAX_CONFIG:
            raise ConfigError(f"{file} has more than {_MAX_CONFIG} bytes")
        return tomllib.loads(content.decode())
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} cannot be read: {problem}") from None


def _pairs(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE", context, parameter)
        if name.lower() in _SECRETS:
            raise ConfigError(
                f"{name} does not belong on a command line or into a configuration; use "
                "UPRIVER_PASSWORD or a password file"
            )
        found[name] = value
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
