"""Options of reads and writes: what they come to, and that every slip is named."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from upriver.batches.options import ReadOptions, RowFormat, WriteOptions
from upriver.consumer.checkpoints.checkpoint import Checkpoint
from upriver.consumer.transport.connection_string import Address
from upriver.errors import ConfigError
from upriver.model import FailoverLog, Snapshot, StreamOffset
from upriver.session.stream_position import Position
from upriver.settings.all_settings import CHANGELOG, MIRROR, READ, WRITE
from upriver.settings.setting import Setting, Use

WHERE = {"connectionString": "couchbase://db.example.com/travel"}


def read(options: dict[str, str] | None = None, **more: str) -> ReadOptions:
    return ReadOptions.parse(WHERE | (options or {}) | more, {})


def pickled(options: object) -> bytes:
    untyped: Any = cloudpickle
    return bytes(untyped.dumps(options))


def write(**more: str) -> WriteOptions:
    return WriteOptions.parse(WHERE | more, {})


def checkpoint(bucket: str = "travel") -> Checkpoint:
    position = Position(
        StreamOffset(2**64 - 1, 7, Snapshot(7, 7)), FailoverLog.of((2**64 - 1, 0)), (7,)
    )
    return Checkpoint(bucket=bucket, vbuckets=64, positions={5: position})


def test_the_defaults() -> None:
    options = read()
    assert options.source.hosts == (Address("db.example.com", 11210),)
    assert options.source.bucket == "travel"
    assert (options.access.user, options.access.password) == ("", "")
    assert (options.starting, options.ending, options.vbuckets) == ("earliest", None, None)
    assert (options.collections, options.scope) == ((), "")
    assert options.rows == RowFormat()
    assert (options.buffer, options.long_poll, options.retry_timeout) == (16 << 20, 0.25, 300)
    assert not options.fail_on_data_loss
    assert not options.fail_on_rollback
    assert not options.restate_on_rollback
    assert options.for_batch() is options.for_stream() is options


def test_everything_can_be_said_and_survives_the_way_to_a_task() -> None:
    options = read(
        collections="shop.orders, shop.items",
        vbuckets="0-3, 17",
        startingOffsets=checkpoint().to_json(),
        endingOffsets='{"0": 12, "17": 9223372036854775807}',
        maxOffsetsPerTrigger="9223372036854775807",
        maxBytesPerTrigger="64m",
        minPartitions="2",
        numPartitions="8",
        failOnDataLoss="TRUE",
        onRollback="Fail",
        xattrs="true",
        valueFormat="String",
        columnNameOfCorruptRecord="bad",
        compression="true",
        flowControlBuffer="512k",
        connectTimeout="500ms",
        requestTimeout="1.5m",
        retryTimeout="0",
        longPoll="100",
        readAhead="0",
        user="reader",
        password=" secret ",
    )
    assert options.collections == ("shop.orders", "shop.items")
    assert options.vbuckets == frozenset({0, 1, 2, 3, 17})
    assert options.starting == checkpoint()
    assert options.ending == {0: 12, 17: 2**63 - 1}
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (2**63 - 1, 64 << 20)
    assert (options.min_partitions, options.num_partitions) == (2, 8)
    assert (options.fail_on_data_loss, options.fail_on_rollback) == (True, True)
    assert options.rows == RowFormat(text=True, xattrs=True, corrupt_column="bad")
    assert (options.compression, options.buffer) == (True, 512 << 10)
    assert (options.connect_timeout, options.request_timeout) == (0.5, 90)
    assert (options.retry_timeout, options.long_poll, options.read_ahead) == (0, 0.1, 0)
    assert options.access.password == " secret "
    assert pickle.loads(pickled(options)) == options
    assert "secret" not in repr(options)


def test_names_come_in_any_case_and_under_other_names() -> None:
    for name in ("connectionstring", "CONNECTION", "path"):
        options = ReadOptions.parse({name: "couchbase://h/b", "USERNAME": "u", "password": "p"}, {})
        assert (options.source.bucket, options.access.user) == ("b", "u")


def test_what_spark_adds_to_the_options_of_a_table_is_no_slip() -> None:
    added = {"option.connectionstring": "couchbase://h/b", "owner": "me", "provider": "dcp"}
    assert read(added).source.bucket == "travel"


@pytest.mark.parametrize(
    ("options", "bucket"),
    [
        ({"path": "couchbase://h", "bucket": "a b"}, "a b"),
        ({"path": "couchbase://h:1,i:2/", "bucket": "x"}, "x"),
        ({"path": "couchbase://h/x", "bucket": "x"}, "x"),
    ],
)
def test_the_bucket_may_stand_apart(options: dict[str, str], bucket: str) -> None:
    assert ReadOptions.parse(options, {}).source.bucket == bucket


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" from a file \n")
    assert read(user="u", passwordFile=str(file)).access.password == " from a file "
    environ = {"UPRIVER_USER": "me", "UPRIVER_PASSWORD": "mine", "OTHER": "other"}
    access = ReadOptions.parse(WHERE, environ).access
    assert (access.user, access.password) == ("me", "mine")
    assert ReadOptions.parse({**WHERE, "passwordEnv": "OTHER"}, environ).access.password == "other"
    lonely = ReadOptions.parse(WHERE, {"UPRIVER_PASSWORD": "of somebody"})
    assert (lonely.access.user, lonely.access.password) == ("", "")


def test_a_checkpoint_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.json"
    file.write_text(checkpoint().to_json())
    assert read(startingOffsets=f"file:{file}").starting == checkpoint()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colections": "a.b"}, "no option 'colections'; did you mean collections?"),
        ({"USER_NAME": "a"}, "did you mean username?"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"zzzz": "1"}, "no option 'zzzz'"),
        ({"paths": '["a","b"]'}, "takes one connectionString"),
        ({"connection": "couchbase://other/b"}, "connectionString is given twice"),
        ({"connectionString": " "}, "connectionString"),
        ({"connectionString": "http://x/y"}, "couchbase://"),
        ({"bucket": "other"}, "bucket is 'other'"),
        ({"connectionString": "couchbase://h"}, "names no bucket"),
        ({"scope": "s", "collections": "s.c"}, "scope and collections contradict"),
        ({"collections": "orders"}, "'orders' is not of the form scope.collection"),
        ({"collections": "a.b.c"}, "collections"),
        ({"collections": "a.b,,c.d"}, "collections"),
        ({"collections": "a.b,a.b"}, "a.b is given twice"),
        ({"vbuckets": "1,x"}, "vbuckets: 'x'"),
        ({"vbuckets": "5-2"}, "vbuckets: the range 5-2 is descending; write 2-5"),
        ({"vbuckets": "0-65536"}, "vbuckets"),
        ({"vbuckets": "0-5,3"}, "repeats a vbucket"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
        ({"startingOffsets": "{}"}, "startingOffsets: it is no checkpoint"),
        ({"startingOffsets": "file:/nowhere/at/all"}, "startingOffsets: /nowhere/at/all"),
        ({"startingOffsets": checkpoint("other").to_json()}, "startingOffsets.*'other'"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"0": -1}'}, "endingOffsets: vbucket 0"),
        ({"endingOffsets": '{"0": 1.5}'}, "endingOffsets: vbucket 0"),
        ({"endingOffsets": '{"70000": 1}'}, "endingOffsets: '70000'"),
        ({"endingOffsets": '{"x": 1}'}, "endingOffsets: 'x'"),
        ({"endingOffsets": '{"0": 1'}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 is not within 1"),
        ({"maxOffsetsPerTrigger": "1k"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": ""}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "5x"}, "maxBytesPerTrigger: '5x' is wrong"),
        ({"maxBytesPerTrigger": "0.5"}, "maxBytesPerTrigger"),
        ({"numPartitions": "2", "minPartitions": "4"}, "numPartitions is 2.*minPartitions"),
        ({"numPartitions": "100000"}, "numPartitions"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is wrong; expected: true or false"),
        ({"onRollback": "ignore"}, "onRollback: 'ignore' is wrong; expected: emit, restate, fail"),
        ({"valueFormat": "avro"}, "valueFormat"),
        ({"noValue": "true", "valueFormat": "string"}, "noValue and valueFormat contradict"),
        ({"decompress": "false", "valueFormat": "string"}, "decompress and valueFormat"),
        ({"decompress": "false", "xattrs": "true"}, "decompress and xattrs contradict"),
        ({"columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord needs valueFormat text"),
        ({"flowControlBuffer": "1"}, "flowControlBuffer: 1 is not within 1024"),
        ({"connectTimeout": "5 parsecs"}, "connectTimeout: '5 parsecs' is wrong"),
        ({"longPoll": "2m"}, "longPoll: 2m is not within 0 to 60 seconds"),
        ({"user": "u"}, "no password for u"),
        ({"password": "p"}, "no user"),
        ({"user": "u", "passwordEnv": "NOT_THERE"}, "passwordEnv.*NOT_THERE"),
        ({"user": "u", "passwordFile": "/nowhere"}, "passwordFile: /nowhere"),
        ({"user": "u", "password": "p", "passwordFile": "f"}, "password and passwordFile"),
        ({"caFile": "ca.pem", "insecure": "true"}, "authority"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(options)


def test_a_secret_is_not_repeated_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        read(password="hunter2", passwordFile="x", user="u")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("endingOffsets", "latest"), ("endingOffsets", '{"0": 1}')]
)
def test_a_stream_has_no_end(name: str, text: str) -> None:
    options = read({name: text})
    assert options.for_batch() is options
    with pytest.raises(ConfigError, match=f"{name} has no meaning for a stream"):
        options.for_stream()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxOffsetsPerTrigger", "1"),
        ("maxBytesPerTrigger", "1"),
        ("longPoll", "1"),
        ("readAhead", "1"),
    ],
)
def test_a_batch_has_no_triggers(name: str, text: str) -> None:
    options = read({name: text})
    assert options.for_stream() is options
    with pytest.raises(ConfigError, match=f"{name} has no meaning for a batch"):
        options.for_batch()


def test_a_batch_does_not_begin_at_its_end() -> None:
    assert read(startingOffsets="latest").for_stream().starting == "latest"
    with pytest.raises(ConfigError, match="startingOffsets"):
        read(startingOffsets="latest").for_batch()


# ---- writing ---------------------------------------------------------------------------------


def test_a_write_finds_its_columns() -> None:
    options = write(keyColumn="id", batchSize="10", connections="2", collection="shop.orders")
    assert (options.batch_size, options.connections) == (10, 2)
    assert options.collection == "shop.orders"
    frame = ["id", "value", "op", "cas", "other"]
    assert options.columns_in(frame) == {"key": "id", "value": "value", "op": "op", "cas": "cas"}
    assert options.columns_in(["id", "op"]) == {"key": "id", "op": "op"}
    assert pickle.loads(pickled(options)) == options


@pytest.mark.parametrize(
    ("options", "frame", "said"),
    [
        ({}, ["value"], "keyColumn: there is no column 'key', only value"),
        ({}, ["key"], "valueColumn"),
        ({"expiryColumn": "ttl"}, ["key", "value"], "expiryColumn: .*'ttl'"),
        ({"checkCas": "true"}, ["key", "value"], "casColumn"),
    ],
)
def test_a_missing_column_is_named(options: dict[str, str], frame: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write(**options).columns_in(frame)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batchSize": "0"}, "batchSize"),
        ({"connections": "99"}, "connections"),
        ({"collection": "orders"}, "scope.collection"),
        ({"keyColumn": ""}, "keyColumn"),
        ({"startingOffsets": "latest"}, "no option 'startingOffsets'"),
        ({"collections": "a.b"}, "did you mean collection?"),
    ],
)
def test_what_is_wrong_with_a_write_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write(**options)


# ---- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table", [READ, WRITE, CHANGELOG, MIRROR], ids=["read", "write", "changelog", "mirror"]
)
def test_the_table_can_be_printed_and_has_no_name_twice(table: tuple[Setting, ...]) -> None:
    names: list[Any] = [n.lower() for option in table for n in (option.name, *option.aliases)]
    assert len(names) == len(set(names))
    for option in table:
        assert re.fullmatch(r"[a-z][A-Za-z]+", option.name)
        assert option.help
        assert "\n" not in option.help


def test_every_option_of_a_read_is_for_batches_streams_or_both() -> None:
    uses = {option.name: option.use for option in READ if option.use is not Use.ANY}
    assert uses == {
        "endingOffsets": Use.BATCH,
        "pushFilters": Use.BATCH,
        "maxOffsetsPerTrigger": Use.STREAM,
        "maxBytesPerTrigger": Use.STREAM,
        "longPoll": Use.STREAM,
        "readAhead": Use.STREAM,
    }
