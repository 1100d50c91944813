"""Command-line options generated from the table of settings, --config, and the Spark session.

Secrets are never options: a password comes from the environment or from a password file.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from ..errors import ConfigError
from ..settings.all_settings import ACCESS, CHANGELOG, HISTORY, MIRROR, SELECTION, named
from ..settings.setting import Given, Setting, ValueKind, text_of
from ..settings.vbucket_list import parse_vbuckets

_log = logging.getLogger("upriver.cli")

_Command = Callable[..., Any]

#: The most bytes of a configuration file.
_MAX_CONFIG: Final = 1024 * 1024
_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Settings that may only come from the environment or from a file of secrets.
_SECRETS: Final = frozenset({"password", "storageoptions"})
#: Limits above this are not shown in help.
_NO_LIMIT: Final = 10**9
#: A text that is for one collection, such as shop.orders=id int.
_OF_COLLECTION: Final = re.compile(r"(\*|[\w%-]+\.[\w%-]+)=(.*)", re.ASCII | re.DOTALL)
_METAVARS: Final = {ValueKind.LIST: "LIST", ValueKind.VBUCKETS: "LIST", ValueKind.DURATION: "TIME"}


# ---- flags of settings -------------------------------------------------------------------


def _flag(setting: Setting) -> Callable[[_Command], _Command]:
    """The click option of a setting; the command receives it by the setting's name."""
    default = f"  [default: {setting.default}]" if setting.default not in (None, "false") else ""
    if setting.by_collection:
        return click.option(
            setting.flag,
            setting.name,
            multiple=True,
            metavar="[SCOPE.COLLECTION=]TEXT|@FILE",
            callback=_by_collection(setting),
            help=f"{setting.help[:1].upper()}{setting.help[1:]}. Once for all collections, or with "
            "--table-per-collection also for single ones; @FILE takes the text from a file.",
        )
    if setting.kind is ValueKind.COLUMNS:
        return click.option(
            setting.flag,
            setting.name,
            multiple=True,
            metavar="'NAME TYPE'",
            callback=lambda _context, _parameter, given: ", ".join(given) or None,
            help=f"{setting.help[:1].upper()}{setting.help[1:]}; can be given several times.",
        )
    return click.option(
        setting.flag,
        setting.name,
        type=_click_type(setting),
        is_flag=True if _is_switch(setting) else None,
        metavar=_METAVARS.get(setting.kind),
        callback=_checked(setting),
        help=f"{setting.help[:1].upper()}{setting.help[1:]}.{default}",
    )


def _is_switch(setting: Setting) -> bool:
    """Whether its flag takes no value: one that is true by default takes true or false."""
    return setting.kind is ValueKind.FLAG and setting.default == "false"


def _click_type(setting: Setting) -> Any:
    if setting.kind is ValueKind.NUMBER:
        most = int(setting.most) if setting.most < _NO_LIMIT else None
        return click.IntRange(int(setting.least), most)
    if setting.kind is ValueKind.CHOICE:
        return click.Choice(setting.choices)
    if setting.kind is ValueKind.FLAG and not _is_switch(setting):
        return click.Choice(("true", "false"))
    return _EXISTING_FILE if setting.kind is ValueKind.FILE else None


def _checked(setting: Setting) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that parses a flag in the same way as the option of Spark."""

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if isinstance(value, str):
            try:
                setting.parse(value)
            except ConfigError as problem:
                text = str(problem).removeprefix(f"{setting.name}: ")
                raise click.BadParameter(text, context, parameter) from None
        return value

    return check


def _by_collection(
    setting: Setting,
) -> Callable[[click.Context, click.Parameter, Sequence[str]], str | None]:
    """A callback that makes one text of several flags, some of which are of one collection."""

    def together(
        context: click.Context, parameter: click.Parameter, given: Sequence[str]
    ) -> str | None:
        found: dict[str, str] = {}
        for text in given:
            named = _OF_COLLECTION.fullmatch(text)
            # column=member is a whole renaming, and no collection
            if named and (setting.name != "rename" or "=" in named[2].partition(",")[0]):
                name, text = named[1], named[2]
            else:
                name = "*"
            if name in found:
                what = "all collections" if name == "*" else name
                raise click.BadParameter(f"it is given twice for {what}", context, parameter)
            found[name] = _file_text(Path(text[1:])) if text.startswith("@") else text
        return found["*"] if found.keys() == {"*"} else json.dumps(found) if found else None

    return together


def _file_text(file: Path) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read(_MAX_CONFIG + 1)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} cannot be read: {problem}") from None
    if len(text) > _MAX_CONFIG:
        raise ConfigError(f"{file} has more than {_MAX_CONFIG} characters")
    return text.strip()


def _flags_of(*settings: Setting) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for setting in reversed([setting for setting in settings if setting.flag]):
            command = _flag(setting)(command)
        return command

    return decorate


def settings_given(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the given settings from a command's options and returns them, with --option."""
    names = {
        setting.name
        for setting in (*ACCESS, *_TIMEOUT, *SELECTION, *_DIALECT, *MIRROR, *CHANGELOG, *_BATCH)
    }
    given = {name: options.pop(name) for name in names & set(options)}
    for name in [name for name, value in given.items() if value is None or value is False]:
        del given[name]  # the default applies
    return {**options.pop("pairs", {}), **given}


_BY_COLLECTION: Final = frozenset(one.name for one in MIRROR if one.by_collection)
_BATCH: Final = named("maxOffsetsPerTrigger")
_TIMEOUT: Final = named("connectTimeout")
_DIALECT: Final = named("dialect")
#: The options for a bucket; --option takes all others.
source_settings = _flags_of(*named("collections", "scope"), *_DIALECT, *ACCESS, *_TIMEOUT)
mirror_settings = _flags_of(*_BATCH, *MIRROR)
changelog_settings = _flags_of(*_BATCH, *CHANGELOG)
history_settings = _flags_of(*_BATCH, *HISTORY)
compact_settings = _flags_of(*named("keepVersions"))


# ---- what commands share -----------------------------------------------------------------

#: The bucket of a command: couchbase://HOST[:PORT]/BUCKET.
source_argument = click.argument("source")


def json_option(text: str = "The result as a JSON object.") -> Callable[[_Command], _Command]:
    """Adds --json, which the command receives as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


# ---- commands without Spark --------------------------------------------------------------


def access_options(command: _Command) -> _Command:
    """Adds the options for credentials, certificates and the timeout.

    The command receives ``access``, an `Access`, and ``timeout`` in seconds.
    """

    @_flags_of(*ACCESS, *_TIMEOUT)
    @wraps(command)
    def with_access(*arguments: Any, **options: Any) -> None:
        from ..settings.connection_from_settings import access_of

        (timeout,) = _TIMEOUT
        options["timeout"] = timeout.parse(options.pop(timeout.name) or timeout.default or "")
        given = settings_given({s.name: options.pop(s.name) for s in ACCESS if s.flag})
        if given.get("insecure"):
            _log.warning("the server's certificate is not verified (--insecure)")
        texts = {name: text_of(value) for name, value in given.items()}
        command(*arguments, access=access_of(Given(ACCESS, texts), os.environ), **options)

    return with_access


def collection_options(command: _Command) -> _Command:
    """Adds --collections, as a tuple of names, and --scope."""
    collections, scope = named("collections", "scope")

    @_flags_of(collections, scope)
    @wraps(command)
    def with_collections(*arguments: Any, **options: Any) -> None:
        options["collections"] = collections.parse(options["collections"] or "")
        options["scope"] = options["scope"] or ""
        command(*arguments, **options)

    return with_collections


def vbuckets_option(*flags: str) -> Callable[[_Command], _Command]:
    """Adds --vbuckets, with other names of it: a tuple of ascending numbers, None for all."""

    def parsed(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> tuple[int, ...] | None:
        try:
            return None if text is None else parse_vbuckets(text)
        except ConfigError as problem:
            raise click.BadParameter(str(problem), context, parameter) from None

    (setting,) = named("vbuckets")
    return click.option(
        setting.flag, *flags, metavar="LIST", callback=parsed, help="Only these, such as 0-15,17."
    )


def dialect_option(command: _Command) -> _Command:
    """Adds --dialect, which is never None."""
    (setting,) = _DIALECT
    return click.option(
        setting.flag,
        type=click.Choice(setting.choices),
        default=setting.default,
        help=f"{setting.help[:1].upper()}{setting.help[1:]}.",
    )(command)


# ---- Spark, and a file with options ------------------------------------------------------


def spark_options(command: _Command) -> _Command:
    """Adds --master, --conf, and --option for any option of the format dcp."""
    for flag, name, text in (
        ("--option", "pairs", "Any option of the format dcp."),
        ("--conf", "conf", "A setting of Spark."),
    ):
        command = name_value_option(flag, name, text)(command)
    return click.option("--master", help="Where Spark runs.  [default: local[*,4]]")(command)


def name_value_option(flag: str, name: str, text: str) -> Callable[[_Command], _Command]:
    """An option that is given several times as NAME=VALUE; the command receives a dict."""
    return click.option(flag, name, multiple=True, metavar="NAME=VALUE", callback=_pairs, help=text)


def otel_option(command: _Command) -> _Command:
    """Adds --otel, which turns reports to OpenTelemetry on."""

    def turned_on(context: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given and not context.resilient_parsing:
            from ..telemetry import enable_export

            enable_export()

    return click.option(
        "--otel",
        is_flag=True,
        expose_value=False,
        callback=turned_on,
        help="Report batches by OpenTelemetry, as OTEL_EXPORTER_OTLP_ENDPOINT and others say.",
    )(command)


def config_option(command: _Command) -> _Command:
    """Adds --config: a TOML file with values of flags, by their names without the dashes."""
    return click.option(
        "--config",
        type=_EXISTING_FILE,
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="A TOML file with values of flags; flags given override it.",
    )(command)


def _configured(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is None:
        return
    options = [one for one in context.command.params if isinstance(one, click.Option)]
    known = {flag.lstrip("-"): one for one in options if one is not parameter for flag in one.opts}
    if "option" in known:
        known["options"] = known["option"]
    defaults: dict[str, Any] = {}
    for name, value in _toml(file).items():
        option = known.get(name.replace("_", "-"))
        if option is None:
            near = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{file}: {name} is not an option of {context.command.name}; {hint}")
        try:
            defaults[str(option.name)] = _default(option, value)
        except ValueError as problem:
            raise ConfigError(f"{file}: {name} must be {problem}") from None
    context.default_map = {**(context.default_map or {}), **defaults}


def _default(option: click.Option, value: Any) -> Any:
    """A value of a TOML file as click takes the default of an option; ValueError: what to give."""
    if option.name in ("pairs", "conf"):
        if not isinstance(value, dict):
            raise ValueError("a table of names and values")
        return [f"{key}={text_of(one)}" for key, one in value.items()]
    if option.name in _BY_COLLECTION:
        if isinstance(value, dict):
            return [f"{key}={one}" for key, one in value.items()]
        return list(map(str, value if isinstance(value, list) else [value]))
    if isinstance(value, list) and option.type is click.STRING:
        return text_of(value)
    if isinstance(value, bool) and isinstance(option.type, click.Choice):
        return text_of(value)
    if not isinstance(value, str | int | float):
        raise ValueError("a text, a number or a boolean")
    return value


def _toml(file: Path) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            content = opened.read(_MAX_CONFIG + 1)
        if len(content) > _MAX_CONFIG:
            raise ConfigError(f"{file} has more than {_MAX_CONFIG} bytes")
        return tomllib.loads(content.decode())
    except ValueError as problem:
        raise ConfigError(f"{file} is not TOML: {problem}") from None
    except OSError as problem:
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
                f"{name} is not accepted on the command line or in a configuration; use "
                "UPRIVER_PASSWORD or a password file, and for object stores their variables, "
                "such as AWS_ACCESS_KEY_ID"
            )
        found[name] = value
    return found
