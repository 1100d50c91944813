"""``upriver tail``: a process that prints the changes of a real server."""

from __future__ import annotations

import base64
import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from document_servers import Document000
from hypothesis import given
from hypothesis import strategies as st
from running import PATIENCE, Running, command, ended, environment, finished, records, running

from upriver.cli.tail.change_text import JsonLines, PlainLines
from upriver.consumer.changes import Change
from upriver.consumer.checkpoints.checkpoint_file import FileCheckpoint
from upriver.model import Datatype, Op
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.store import SetDocument, document_key
from upriver.testing import TemporaryProducer
from upriver.wire.values import join_xattrs

VBUCKETS = 4


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "reader.checkpoint"


def fill(producer: TemporaryProducer, count: int, vbucket: int | None = None) -> None:
    for number in range(count):
        producer.write(b"doc%d" % number, b'{"n": %d}' % number, vbucket)


def everything(producer: TemporaryProducer, *words: str | Path) -> list[dict[str, Any]]:
    """What a run to the present prints, without the record of its end."""
    result = finished("tail", producer.source, "--to", "now", "--json", *words)
    assert result.returncode == 0, result.stderr
    *changes, end = records(result.stdout)
    assert end == {"type": "end", "vbucket": None, "reason": "reached", "changes": len(changes)}
    return changes


def keys(changes: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(change["key"] for change in changes)


def wait_for_checkpoint(path: Path, seqnos: int) -> None:
    """Until so many seqnos in all are saved, by a process that saves by itself."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        saved = FileCheckpoint(path).load()
        if saved is not None and sum(p.seqno for p in saved.positions.values()) >= seqnos:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} was not saved in time")


# ---- what is printed ---------------------------------------------------------------------


def test_all_changes_come_with_all_their_fields(producer: TemporaryProducer) -> None:
    written = producer.write(b"order:1", b'{"total": 12345678901234567890.10}', vbucket=2)
    gone = producer.delete(b"order:1", vbucket=2)
    producer.write(b"order:2", b"plain text", vbucket=2)
    deletion, mutation = everything(producer)
    assert deletion["type"] == "deletion"
    assert (deletion["cas"], deletion["seqno"], deletion["rev"]) == (gone.cas, 2, 2)
    assert (deletion["value"], deletion["value_format"]) == (None, "none")
    assert datetime.fromisoformat(deletion["time"]).timestamp() == pytest.approx(gone.cas / 1e9)
    assert gone.cas > written.cas
    assert mutation.keys() == deletion.keys()
    assert mutation == mutation | {
        "type": "mutation",
        "vbucket": 2,
        "seqno": 3,
        "collection": "_default._default",
        "key": "order:2",
        "key_format": "text",
        "value": "plain text",
        "value_format": "text",
        "size": 10,
        "flags": 0,
        "expiry": 0,
        "datatype": 0,
    }


def test_a_person_gets_a_line_for_each_change(producer: TemporaryProducer) -> None:
    collection = producer.bucket.create_collection(0, "people").id
    producer.write(b"a", b'{"text":\n"\x1b[31mred"}' + b" " * 500, vbucket=3)
    producer.write(b"b", b"1", vbucket=3)
    producer.delete(b"b", vbucket=3)
    producer.write(b"c", b"1", vbucket=3, collection=collection)
    result = finished("tail", producer.source, "--to", "now", "--vbuckets", "3")
    long, deleted, elsewhere = result.stdout.splitlines()
    assert "  mutation    3:2 " in long
    assert '  a  {"text":·"·[31mred"}' in long
    assert long.endswith("…")
    assert "  deletion    3:4 " in deleted
    assert deleted.endswith(" 0 B  b")
    assert elsewhere.endswith("1 B  _default.people c  1")
    assert result.stderr.startswith("3 changes in ")
    assert result.stderr.endswith(" a second; rollbacks: 0; reconnects: 0\n")


def test_bytes_that_are_no_text_come_in_base64(producer: TemporaryProducer) -> None:
    producer.write(b"\xff\x00key", b"\x80\x81value", vbucket=0)
    (change,) = everything(producer)
    assert change["key_format"] == change["value_format"] == "base64"
    assert base64.b64decode(change["key"]) == b"\xff\x00key"
    assert base64.b64decode(change["value"]) == b"\x80\x81value"


def test_values_are_not_asked_for_if_only_keys_are_wanted(producer: TemporaryProducer) -> None:
    fill(producer, 5)
    changes = everything(producer, "--keys-only")
    assert keys(changes) == [f"doc{n}" for n in range(5)]
    assert {(c["value"], c["value_format"], c["size"]) for c in changes} == {(None, "none", 0)}


def test_extended_attributes_come_if_they_are_wanted(producer: TemporaryProducer) -> None:
    value = join_xattrs({"_sync": b'{"rev": 1}', "tag": b'"x"'}, b'{"a": 1}')
    kind = Datatype.XATTR | Datatype.JSON
    producer.bucket.write(SetDocument(1, document_key(b"k"), value, datatype=kind))
    (plain,) = everything(producer)
    assert "xattrs" not in plain
    (rich,) = everything(producer, "--xattrs")
    assert rich["xattrs"] == {"_sync": {"rev": 1}, "tag": "x"}
    assert rich["value"] == plain["value"] == {"a": 1}


def line_of(value: bytes, **fields: Any) -> str:
    change = Change(Op.MUTATION, 0, 1, 1, 2**64 - 1, 0, 0, 0, 0, b"k", value)
    return JsonLines(lambda _: "s.c").changes([change._replace(**fields)])


@given(st.binary() | st.text().map(str.encode), st.binary())
def test_any_bytes_make_one_line_from_which_they_can_be_read(value: bytes, key: bytes) -> None:
    line = line_of(value, key=key)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    record = json.loads(line)
    for name, content in (("key", key), ("value", value)):
        match record[f"{name}_format"]:
            case "base64":
                assert base64.b64decode(record[name]) == content
            case "text":
                assert record[name].encode() == content
            case form:
                assert form == "json"
                assert json.loads(content) == record[name]
    assert PlainLines(lambda _: "s.c").changes([_change(key, value)]).count("\n") == 1


def _change(key: bytes, value: bytes) -> Change:
    return Change(Op.MUTATION, 0, 1, 1, 2**64 - 1, 0, 0, 0, 0, key, value)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON, st.sampled_from([None, 1]))
def test_json_comes_as_it_is_however_it_is_laid_out(document: Any, indent: int | None) -> None:
    line = line_of(json.dumps(document, indent=indent, ensure_ascii=False).encode(errors="replace"))
    assert line.count("\n") == 1
    assert json.loads(line)["value_format"] == "json"


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"1" + b"0" * 5000, "json"),  # more digits than Python turns into a number
        (b"1.10", "json"),
        (b"\r\n [1,\r\n2]\n", "json"),
        (b"NaN", "text"),
        (b"[1] [2]", "text"),
        (b"", "text"),
        (b"[" * 100_000, "text"),
        (b"[" * 100_000 + b"]" * 100_000, "text"),  # nobody could read it
        (b'"\xed\xa0\x80"', "base64"),
    ],
)
def test_values_at_the_edge(value: bytes, form: str) -> None:
    line = line_of(value)
    assert f'"value_format":"{form}"' in line
    assert line.count("\n") == 1
    assert form != "json" or value.strip().replace(b"\r\n", b"  ") in line.encode()


def test_a_value_whose_attributes_are_broken_comes_whole() -> None:
    record = json.loads(line_of(b"\0\0\0\xff{}", datatype=int(Datatype.XATTR)))
    assert base64.b64decode(record["value"]) == b"\0\0\0\xff{}"


# ---- what is read ------------------------------------------------------------------------


def test_it_follows_what_is_written(producer: TemporaryProducer) -> None:
    producer.write(b"before", b"1")
    with running("tail", producer.source, "--json") as reader:
        assert reader.record()["key"] == "before"
        for key in ("one", "two", "three"):
            producer.write(key.encode(), b"2")
            assert reader.record()["key"] == key
        producer.kill_connections()
        producer.write(b"after", b"3")
        assert reader.record()["key"] == "after"
        status, out, err = reader.stop()
    assert status == 130
    assert records(out) == [{"type": "end", "vbucket": None, "reason": "stopped", "changes": 5}]
    assert err.splitlines()[-1].startswith("5 changes in ")
    assert err.endswith("; rollbacks: 0; reconnects: 1\n")


def test_from_now_shows_nothing_old(producer: TemporaryProducer) -> None:
    fill(producer, 10)
    assert everything(producer, "--from", "now") == []


def test_some_vbuckets(producer: TemporaryProducer) -> None:
    fill(producer, 40)
    assert {c["vbucket"] for c in everything(producer, "--vbuckets", "0-1,3")} == {0, 1, 3}
    result = finished("tail", producer.source, "--vbuckets", "7")
    assert (result.returncode, result.stderr) == (
        1,
        "error: there is no vbucket 7: the bucket has the vbuckets 0 to 3\n",
    )


def test_collections_by_name(producer: TemporaryProducer) -> None:
    shop = producer.bucket.create_scope("shop").id
    orders = producer.bucket.create_collection(shop, "orders").id
    people = producer.bucket.create_collection(shop, "people").id
    for name, collection in ((b"plain", 0), (b"order", orders), (b"person", people)):
        producer.write(name, b"{}", collection=collection)
    assert keys(everything(producer, "--collections", "shop.orders")) == ["order"]
    assert keys(everything(producer, "--collections", "_default,shop.people")) == [
        "person",
        "plain",
    ]
    found = everything(producer, "--scope", "shop")
    assert {c["collection"] for c in found} == {"shop.orders", "shop.people"}
    result = finished("tail", producer.source, "--collections", "shop.order")
    assert result.returncode == 1
    assert "did you mean 'shop.orders'?" in result.stderr


@pytest.mark.story
@pytest.mark.parametrize("dialect", ["dcp", "001", "000", "002"])
def test_every_dialect(producer: TemporaryProducer, dialect: str) -> None:
    fill(producer, 6)
    assert len(everything(producer, "--dialect", dialect)) == 6


def test_a_server_that_knows_one_document_only() -> None:
    with Document000({0: 2, 2: 1}) as server:
        result = finished("tail", server.source, "--dialect", "000", "--limit", "3", "--json")
        assert result.returncode == 0, result.stderr
        assert keys(records(result.stdout)[:3]) == ["0:k1", "0:k2", "2:k1"]
        assert "is taken for the only node" in result.stderr


# ---- checkpoints -------------------------------------------------------------------------


@pytest.mark.story
def test_a_stopped_reader_goes_on_without_a_gap_or_a_repetition(
    producer: TemporaryProducer, checkpoint: Path
) -> None:
    fill(producer, 20)
    with running("tail", producer.source, "--json", "--checkpoint", checkpoint) as reader:
        assert keys(reader.records(20)) == sorted(f"doc{n}" for n in range(20))
        assert reader.stop(signal.SIGTERM)[0] == 143
    producer.write(b"new", b"1")
    # where it starts was decided by the checkpoint
    assert keys(everything(producer, "--from", "now", "--checkpoint", checkpoint)) == ["new"]
    assert everything(producer, "--checkpoint", checkpoint) == []
    assert everything(producer, "--from", checkpoint) == []


@pytest.mark.story
def test_a_killed_reader_leaves_nothing_out(
    producer: TemporaryProducer, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.ndjson"
    fill(producer, 50)
    with (
        output.open("wb") as out,
        running(
            "tail", producer.source, "--json", "--checkpoint", checkpoint, stdout=out
        ) as reader,
    ):
        wait_for_checkpoint(checkpoint, 50)
        for number in range(50):
            producer.write(b"later%d" % number, b"1")
        reader.process.kill()
        reader.process.wait()
    before = output.read_bytes()
    whole = before[: before.rfind(b"\n") + 1].decode()
    seen = records(whole)
    saved = FileCheckpoint(checkpoint).load()
    assert saved is not None
    # the position is never ahead of what was written
    last: dict[int, int] = defaultdict(int)
    for change in seen:
        assert change["seqno"] == last[change["vbucket"]] + 1
        last[change["vbucket"]] = change["seqno"]
    assert all(saved.position(vb).seqno <= last[vb] for vb in range(VBUCKETS))
    again = everything(producer, "--checkpoint", checkpoint)
    assert len(again) <= 50
    both = {change["key"] for change in seen + again}
    assert both == {f"{name}{n}" for name in ("doc", "later") for n in range(50)}


def test_a_limit_turns_pages(producer: TemporaryProducer, checkpoint: Path) -> None:
    fill(producer, 10)
    words = ("tail", producer.source, "--json", "--checkpoint", checkpoint, "--limit")
    pages = []
    for limit in (3, 1, 4):
        result = finished(*words, limit)
        *changes, end = records(result.stdout)
        assert (end["reason"], len(changes)) == ("limit", limit)
        pages += changes
    pages += everything(producer, "--checkpoint", checkpoint)
    assert keys(pages) == [f"doc{n}" for n in range(10)]


def test_vbuckets_that_are_not_read_stay_in_the_checkpoint(
    producer: TemporaryProducer, checkpoint: Path
) -> None:
    fill(producer, 20)
    everything(producer, "--checkpoint", checkpoint)
    producer.write(b"x", b"1", vbucket=0)
    producer.write(b"x", b"1", vbucket=1)
    changes = everything(producer, "--checkpoint", checkpoint, "--vbuckets", "0")
    assert [c["vbucket"] for c in changes] == [0]
    assert [c["vbucket"] for c in everything(producer, "--checkpoint", checkpoint)] == [1]


def test_a_checkpoint_has_one_writer(producer: TemporaryProducer, checkpoint: Path) -> None:
    with FileCheckpoint(checkpoint):
        result = finished("tail", producer.source, "--checkpoint", checkpoint)
    assert result.returncode == 1
    assert "is written by process" in result.stderr


# ---- rollbacks ---------------------------------------------------------------------------


def followed(producer: TemporaryProducer, reader: Running) -> None:
    """Has a reader read five changes of vbucket 0, each a snapshot of its own."""
    for number in range(5):
        producer.write(b"k%d" % number, b"old", vbucket=0)
        assert reader.record()["seqno"] == number + 1


def test_a_rollback_comes_before_what_is_new(producer: TemporaryProducer) -> None:
    with running("tail", producer.source, "--json") as reader:
        followed(producer, reader)
        producer.fail_over(0, 3)
        producer.write(b"new", b"new", vbucket=0)
        rollback = reader.record()
        assert rollback.items() >= {"type": "rollback", "vbucket": 0, "from_seqno": 5}.items()
        assert rollback["reason"] == "diverged"
        assert rollback["to_seqno"] == 3
        change = reader.record()
        assert (change["seqno"], change["key"]) == (4, "new")
        assert reader.stop()[2].endswith("; rollbacks: 1; reconnects: 0\n")


def test_a_rollback_of_which_nobody_wants_to_hear(producer: TemporaryProducer) -> None:
    with running("tail", producer.source, "--json", "--on-rollback", "ignore") as reader:
        followed(producer, reader)
        producer.fail_over(0, 3)
        producer.write(b"new", b"new", vbucket=0)
        assert reader.record()["key"] == "new"


def test_a_rollback_that_is_an_error(producer: TemporaryProducer, checkpoint: Path) -> None:
    words = ("tail", producer.source, "--json", "--on-rollback", "fail", "--checkpoint", checkpoint)
    with running(*words) as reader:
        followed(producer, reader)
        producer.fail_over(0, 3)
        out, err = reader.process.communicate()
    assert reader.process.returncode == 1
    assert out == ""
    assert err == "error: vbucket 0 must be rolled back to seqno 3 (diverged)\n"
    saved = FileCheckpoint(checkpoint).load()
    assert saved is not None
    assert saved.position(0).seqno == 5


def test_a_person_sees_a_rollback(producer: TemporaryProducer) -> None:
    with running("tail", producer.source) as reader:
        producer.write(b"k", b"old", vbucket=1)
        assert reader.line()
        producer.fail_over(1, 0)
        assert reader.line() == "-- vbucket 1 rolled back from 1 to 0: diverged\n"


# ---- ends and errors ---------------------------------------------------------------------


def test_it_ends_quietly_when_nobody_reads_any_more(producer: TemporaryProducer) -> None:
    fill(producer, 10)
    with running("tail", producer.source) as reader:
        assert reader.line()
        reader.out.close()  # and nothing more is written
        assert reader.process.wait() == 0
        assert reader.err.read() == ""


def test_it_ends_quietly_when_a_write_finds_nobody(producer: TemporaryProducer) -> None:
    value = b"x" * 10_000
    for number in range(100):  # more than a pipe holds
        producer.write(b"doc%d" % number, value)
    with running("tail", producer.source, "--json") as reader:
        assert reader.line()
        reader.out.close()
        assert reader.process.wait() == 0
        assert reader.err.read() == ""


def test_an_output_that_is_full_is_an_error(producer: TemporaryProducer, checkpoint: Path) -> None:
    fill(producer, 10)
    with open("/dev/full", "wb") as full:
        words = ("tail", producer.source, "--to", "now", "--checkpoint", checkpoint)
        result = ended(*words, stdout=full)
    assert result.returncode == 1
    assert result.stderr == "error: the output cannot be written: No space left on device\n"
    assert len(everything(producer, "--checkpoint", checkpoint)) == 10


def test_a_user_with_the_wrong_password(tmp_path: Path) -> None:
    users = Users()
    users.add("reader", "p4ssword", Grant(Role.READ_STREAM), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json", authentication_delay=0)
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as guarded:
        words = ("tail", guarded.source, "--to", "now", "--user", "reader")
        assert finished(*words, UPRIVER_PASSWORD="p4ssword").returncode == 0
        result = finished(*words, UPRIVER_PASSWORD="guess")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: authentication failed for user 'reader' at 127.0.0.1:")
    assert result.stderr.count("\n") == 1


def test_what_cannot_be_read_is_one_line(producer: TemporaryProducer, tmp_path: Path) -> None:
    def complaint(*words: str) -> str:
        result = finished("tail", *words)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        said: str = result.stderr
        return said

    other = producer.source.replace("/default", "/missing")
    assert "missing" in complaint(other)
    assert "is no connection string" in complaint("localhost")
    assert "there is no file 'nowhere'" in complaint(producer.source, "--from", "nowhere")
    (tmp_path / "damaged").write_text("{")
    assert "cannot be used" in complaint(producer.source, "--from", str(tmp_path / "damaged"))


# ---- the line that is drawn over again ---------------------------------------------------


def read_terminal(terminal: int, until: str) -> str:
    """What a program shows on a screen, up to some text."""
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while until not in shown.decode(errors="replace"):
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], shown
        shown += os.read(terminal, 65_536)
    return shown.decode(errors="replace")


def test_those_who_watch_see_how_it_goes(producer: TemporaryProducer) -> None:
    fill(producer, 30)
    ours, theirs = pty.openpty()
    try:
        words = command("tail", producer.source, "--json")
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=theirs, env=environment(COLUMNS="")
        ) as process:
            try:
                shown = read_terminal(ours, " 0 behind, 4 of 4 vbuckets, 0 reconnects")
                assert "30 changes, " in shown
                process.send_signal(signal.SIGINT)
                assert "30 changes in " in read_terminal(ours, "reconnects: 0")
                assert process.wait(PATIENCE) == 130
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def test_processes_of_a_group_share_the_changes(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        words = ("tail", producer.source, "--json", "--group", "g", "--members", tmp_path)
        with running(*words) as first, running(*words) as second:
            # the one that came first lets two vbuckets go; who has which is told by the changes
            told: dict[int, set[int]] = {0: set(), 1: set()}
            number = 0
            threads = [
                threading.Thread(target=_vbuckets_of, args=(one, told[index]), daemon=True)
                for index, one in enumerate((first, second))
            ]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + PATIENCE
            while min(map(len, told.values())) < 2:
                assert time.monotonic() < deadline
                for vbucket in range(4):
                    producer.write(b"key:%d" % number, b"{}", vbucket=vbucket)
                number += 1
                time.sleep(0.1)
            for one in (first, second):
                one.process.send_signal(signal.SIGINT)
            for one in (first, second):
                assert one.process.wait(PATIENCE) == 130
            for thread in threads:
                thread.join()
        # what was printed was saved: nobody prints it again
        with running(*words, "--limit", "1") as third:
            producer.write(b"last", b"{}", vbucket=0)
            assert third.record()["key"] == "last"


def _vbuckets_of(process: Running, found: set[int]) -> None:
    for line in process.out:
        record = json.loads(line)
        if "vbucket" in record:
            found.add(record["vbucket"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--group", "g", "--checkpoint", "file"], "keeps its positions"),
        (["--members", "somewhere"], "give its name"),
    ],
)
def test_options_that_do_not_fit_a_group_are_refused(words: list[str], problem: str) -> None:
    refused = finished("tail", "couchbase://127.0.0.1:1/default", *words)
    assert refused.returncode == 2
    assert problem in refused.stderr
