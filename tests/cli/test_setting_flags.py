"""Flags are made from the table of settings, and what they say reaches a pipeline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from upriver.cli.commands.changelog import changelog
from upriver.cli.commands.compact import compact
from upriver.cli.commands.history import history
from upriver.cli.commands.mirror import mirror
from upriver.cli.commands.tail import tail
from upriver.cli.commands.verify import verify
from upriver.cli.setting_options import (
    access_options,
    changelog_settings,
    collection_options,
    config_option,
    mirror_settings,
    settings_given,
    source_settings,
    spark_options,
    vbuckets_option,
)
from upriver.consumer.consumer_settings import ConsumerSettings
from upriver.consumer.groups.member import LEASES
from upriver.consumer.groups.membership import DEFAULT_LEASE
from upriver.consumer.transport.blocking_connection import ANSWER_SECONDS, CONNECT_SECONDS
from upriver.consumer.writing.writer import WriterSettings
from upriver.errors import ConfigError
from upriver.settings.all_settings import ACCESS, CHANGELOG, HISTORY, MIRROR, READ, WRITE, named
from upriver.settings.setting import Setting
from upriver.tables.pipeline_settings import AskedColumns, PipelineSettings

pytestmark = pytest.mark.story

SOURCE = "couchbase://h/b"


def flags_of(command: click.Command) -> dict[str, str]:
    return {flag: str(one.name) for one in command.params for flag in one.opts}


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (mirror, (*MIRROR, *ACCESS, *named("collections", "scope", "maxOffsetsPerTrigger"))),
        (changelog, (*CHANGELOG, *ACCESS, *named("collections", "scope", "maxOffsetsPerTrigger"))),
        (history, (*HISTORY, *ACCESS, *named("collections", "scope", "maxOffsetsPerTrigger"))),
        (verify, (*ACCESS, *named("collections", "scope"))),
        (compact, named("keepVersions")),
    ],
)
def test_a_command_has_the_flags_of_its_settings(
    command: click.Command, settings: tuple[Setting, ...]
) -> None:
    flags = flags_of(command)
    wanted = {setting.flag: setting.name for setting in settings if setting.flag}
    assert wanted.items() <= flags.items()


def test_a_setting_is_declared_once() -> None:
    rows: dict[str, Setting] = {}
    for setting in (*READ, *WRITE, *CHANGELOG, *MIRROR):
        assert rows.setdefault(setting.name, setting) is setting, setting.name
    flags = [setting.flag for setting in rows.values() if setting.flag]
    assert len(set(flags)) == len(flags)
    assert all(re.fullmatch("--[a-z-]+", flag) for flag in flags)


def said(decorators: list[Any], *words: str) -> dict[str, Any]:
    """What a command with these flags hands on."""
    found: list[dict[str, Any]] = []

    def command(**options: Any) -> None:
        found.append(settings_given(options))

    for add in decorators:
        command = add(command)
    ran = CliRunner().invoke(click.command()(command), list(words), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return found[0]


def test_everything_that_flags_say_of_a_mirror_reaches_it() -> None:
    words = "--once --trigger 10s --compact-every 0 --keep-versions 2d --max-batch 7 "
    words += "--value-format string --keep-deleted --table-per-collection --groups 8 "
    words += "--collections a.b,c.d --option longPoll=100ms "
    words += "--keep-versions-size 5m --merge-on-read false"
    given = said([spark_options, source_settings, mirror_settings], *words.split())
    settings = PipelineSettings.parse("mirror", SOURCE, given)
    assert (settings.once, settings.trigger, settings.compact_every) == (True, 10.0, 0)
    assert (settings.window.seconds, settings.window.bytes) == (2 * 86_400, 5 * 1024**2)
    assert (settings.merge_on_read, settings.groups, settings.text) == (False, 8, True)
    assert settings.keep_deleted
    assert settings.table_per_collection
    assert settings.read.max_offsets_per_trigger == 7
    assert settings.read.collections == ("a.b", "c.d")
    assert settings.read.long_poll == 0.1


def test_flags_of_columns_are_for_all_collections_or_for_single_ones(tmp_path: Path) -> None:
    ddl = tmp_path / "people.ddl"
    ddl.write_text("who string,\n  age int\n")

    def columns(*words: str, collection: str = "") -> AskedColumns:
        given = said(
            [spark_options, mirror_settings, config_option], "--table-per-collection", *words
        )
        return PipelineSettings.parse("mirror", SOURCE, given).columns_of(collection)

    words = ["--schema", "infer", "--schema", f"a.people=@{ddl}", "--rename", "a.people=who=name"]
    words += ["--key-pattern", "{kind}::{number}"]
    assert columns(*words) == AskedColumns("infer", (), "{kind}::{number}")
    assert columns(*words, collection="a.people") == AskedColumns(
        "who string,\n  age int", (("who", "name"),), "{kind}::{number}"
    )
    # a column and a member that look like a collection
    assert columns("--schema", "c int", "--rename", "c=d.e,f=g").rename == (
        ("c", "d.e"),
        ("f", "g"),
    )
    assert columns("--schema", "`a.b` int", "--rename", "a.b=c").rename == (("a.b", "c"),)
    config = tmp_path / "mirror.toml"
    config.write_text("[schema]\n'a.people' = 'age int'\n'*' = 'infer'\n")
    with pytest.raises(ConfigError, match="no collection"):
        columns("--schema", '{"x": "y"}')
    assert columns("--config", str(config), collection="a.people").schema == "age int"
    assert columns("--config", str(config)).schema == "infer"
    for wrong in (["infer", "infer"], ["a.b=c int", "a.b=d int"], [f"@{tmp_path}/none"]):
        flags = [word for text in wrong for word in ("--schema", text)]
        ran = CliRunner().invoke(mirror, [SOURCE, "table", *flags])
        assert ran.exit_code != 0
        assert "twice" in ran.output or "cannot be read" in str(ran.exception)


@pytest.mark.parametrize("value", [False, "false", "False"])
def test_merging_on_read_is_turned_off_by_a_bool_or_a_word(
    value: bool | str, tmp_path: Path
) -> None:
    for spelled in ("merge_on_read", "mergeOnRead"):
        assert not PipelineSettings.parse("mirror", SOURCE, {spelled: value}).merge_on_read
    assert PipelineSettings.parse("mirror", SOURCE, {}).merge_on_read
    config = tmp_path / "mirror.toml"
    config.write_text(
        f"merge-on-read = {json.dumps(value.lower() if isinstance(value, str) else value)}\n"
    )
    given = said([spark_options, mirror_settings, config_option], "--config", str(config))
    assert given == {"mergeOnRead": "false"}


def default_of(*rows: Setting) -> list[Any]:
    return [row.parse(row.default or "") for row in rows]


def test_numbers_of_settings_and_of_the_clients_are_the_same() -> None:
    """The clients are not imported to show help, so these stand twice."""
    consumer, writer = ConsumerSettings(), WriterSettings()
    (buffer,) = named("flowControlBuffer")
    assert default_of(buffer) == [consumer.buffer]
    for size in (buffer.least, buffer.most):
        ConsumerSettings(buffer=int(size))
    for size in (buffer.least - 1, buffer.most + 1):
        with pytest.raises(ConfigError):
            ConsumerSettings(buffer=int(size))
    timeouts = default_of(*named("connectTimeout", "requestTimeout"))
    assert timeouts == [consumer.connect_timeout, consumer.answer_timeout]
    assert timeouts == [writer.connect_timeout, writer.request_timeout]
    assert timeouts == [CONNECT_SECONDS, ANSWER_SECONDS]
    assert default_of(*named("batchSize", "connections")) == [writer.batch_size, writer.connections]
    lease = next(one for one in tail.params if one.name == "lease")
    assert isinstance(lease.type, click.FloatRange)
    assert (lease.default, lease.type.min, lease.type.max) == (DEFAULT_LEASE, *LEASES)


def test_what_flags_do_not_say_is_left_to_the_defaults() -> None:
    assert said([spark_options, source_settings, changelog_settings]) == {}
    settings = PipelineSettings.parse("changelog", SOURCE, {})
    assert (settings.once, settings.compact_every, settings.window.seconds) == (False, 20, 86_400)
    assert settings.read.max_offsets_per_trigger == 1_000_000


@pytest.mark.parametrize("text", ["7x", "-1", "soon"])
def test_a_wrong_time_is_a_slip_of_the_command_line(text: str) -> None:
    ran = CliRunner().invoke(compact, ["table", "--keep-versions", text])
    assert ran.exit_code == 2
    assert "--keep-versions" in ran.output
    assert "duration" in ran.output


def test_decorators_are_usable_alone() -> None:
    @click.command()
    @config_option
    @spark_options
    @collection_options
    @vbuckets_option("--vbucket")
    @access_options
    def command(**options: Any) -> None:
        click.echo(f"{options['collections']} {options['vbuckets']} {options['access'].user!r}")

    words = ["--collections", "a.b", "--vbucket", "3,0-1"]
    ran = CliRunner(env={"UPRIVER_USER": "me", "UPRIVER_PASSWORD": "p"}).invoke(command, words)
    assert ran.output == "('a.b',) (0, 1, 3) 'me'\n"
