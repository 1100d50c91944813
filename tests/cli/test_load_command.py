"""``upriver load``: documents into a real server, and what it says when that cannot be."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import write_certificates
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.cli.load import load_run
from upriver.cli.load.document_sources import BadLine, KeyAndBody, from_csv, from_ndjson, generated
from upriver.cli.load.load_run import Pace
from upriver.cli.main import cli
from upriver.consumer.topology.cluster_map import vbucket_of
from upriver.consumer.writing.edit_pipeline import ROUND_BYTES
from upriver.errors import UpriverError
from upriver.model import Datatype, VBucketState
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

VBUCKETS = 8


@pytest.fixture
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as running:
        yield running


def address(producer: TemporaryProducer, *, scheme: str = "couchbase", bucket: str = "") -> str:
    name = bucket or producer.bucket.name
    return f"{scheme}://{producer.host}:{producer.port}/{name}"


def run(*arguments: str | Path, stdin: str | None = None, **environment: str) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli, ["load", *words], input=stdin, env=environment)


def loaded(*arguments: str | Path, **options: Any) -> dict[str, Any]:
    """What a run that succeeds says of itself."""
    result = run(*arguments, "--json", **options)
    assert result.exit_code == 0, result.exception or result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def complaint(*arguments: str | Path, **options: Any) -> str:
    """The one line that a run which fails ends with."""
    result = run(*arguments, **options)
    assert isinstance(result.exception, UpriverError), result.output
    line = str(result.exception)
    assert "\n" not in line
    return line


def stored(producer: TemporaryProducer, key: str) -> Any:
    return producer.bucket.get(vbucket_of(key.encode(), VBUCKETS), b"\0" + key.encode())


def document(producer: TemporaryProducer, key: str) -> Any:
    return json.loads(stored(producer, key).value)


def count(producer: TemporaryProducer) -> int:
    return producer.bucket.stats().items


# ---- generated documents -----------------------------------------------------------------


def test_generated_documents_arrive_whole(producer: TemporaryProducer) -> None:
    said = loaded(address(producer), "--docs", "500", "--size", "300", "--prefix", "order:")
    assert said["documents"] == 500
    assert said["skipped"] == 0
    assert count(producer) == 500
    for key, value in generated(500, size=300, prefix="order:"):
        found = stored(producer, key.decode())
        assert found.value == value
        assert found.datatype == Datatype.JSON
    assert document(producer, "order:499")["id"] == 499


def test_a_person_gets_one_line(producer: TemporaryProducer) -> None:
    result = run(address(producer), "--docs", "10")
    assert result.exit_code == 0
    assert result.stdout.startswith("10 documents in ")
    assert result.stdout.endswith(" a second\n")
    assert result.stderr == ""


def test_a_terminal_gets_a_bar(producer: TemporaryProducer) -> None:
    result = run(address(producer), "--docs", "10", FORCE_COLOR="1")
    assert "10/10" in result.stderr
    assert result.stdout.startswith("10 documents in ")


def test_a_second_run_writes_the_same_again(producer: TemporaryProducer) -> None:
    loaded(address(producer), "--docs", "20")
    before = stored(producer, "doc7")
    loaded(address(producer), "--docs", "20")
    after = stored(producer, "doc7")
    assert after.value == before.value
    assert after.cas > before.cas
    assert count(producer) == 20
    loaded(address(producer), "--docs", "20", "--size", "400")
    assert len(stored(producer, "doc7").value) == 400


@settings(deadline=None)
@given(number=st.integers(1, 50), size=st.integers(1, 2000))
def test_generated_documents_are_json_of_about_the_size(number: int, size: int) -> None:
    documents = list(generated(number, size=size, prefix="p"))
    assert documents == list(generated(number, size=size, prefix="p"))
    assert [key for key, _ in documents] == [f"p{n}".encode() for n in range(number)]
    for at, (_, value) in enumerate(documents):
        assert json.loads(value)["id"] == at
        assert len(value) == size or (size < 120 and len(value) < 120)


def test_a_document_larger_than_a_window(producer: TemporaryProducer) -> None:
    size = 3 * ROUND_BYTES
    loaded(address(producer), "--docs", "3", "--size", str(size))
    assert len(stored(producer, "doc2").value) == size


# ---- files -------------------------------------------------------------------------------


def test_ndjson_with_keys_of_its_own(producer: TemporaryProducer, tmp_path: Path) -> None:
    file = tmp_path / "people.ndjson"
    file.write_text('\ufeff{"mail": "ä@x", "age": 3}\n\n  {"mail": 17}  \r\n{"mail": "last"}')
    assert loaded(address(producer), "--file", file, "--key", "mail")["documents"] == 3
    assert stored(producer, "ä@x").value == '{"mail": "ä@x", "age": 3}'.encode()
    assert document(producer, "17") == {"mail": 17}
    assert document(producer, "last") == {"mail": "last"}


def test_ndjson_without_keys_and_no_more_than_asked_for(producer: TemporaryProducer) -> None:
    lines = '{"n":0}\n{"n":1}\n{"n":2}\n'
    said = loaded(address(producer), "--file", "-", "--docs", "2", "--prefix", "x", stdin=lines)
    assert said["documents"] == 2
    assert document(producer, "x1") == {"n": 1}
    assert count(producer) == 2


def test_csv_with_a_header(producer: TemporaryProducer, tmp_path: Path) -> None:
    file = tmp_path / "stock.CSV"
    file.write_text('\ufeffsku,name,left\r\na1,"screws, ""large""\nsteel",7\r\n\r\nb2,nuts,\r\n')
    assert loaded(address(producer), "--file", file, "--key", "sku")["documents"] == 2
    assert document(producer, "a1") == {"sku": "a1", "name": 'screws, "large"\nsteel', "left": "7"}
    assert document(producer, "b2") == {"sku": "b2", "name": "nuts", "left": ""}
    loaded(address(producer), "--file", file)
    assert document(producer, "doc1")["sku"] == "b2"


def read(reader: Callable[..., Iterator[KeyAndBody]], file: Path) -> tuple[list[bytes], BadLine]:
    """The keys in a file with one bad line, and that line."""
    found: list[BadLine] = []
    with file.open("rb") as opened:
        keys = [key for key, _ in reader(opened, prefix="p", key="k", on_bad=found.append)]
    (bad,) = found
    return keys, bad


BAD_NDJSON = {
    b'{"k":': "not JSON",
    b"[1]": "not a JSON object",
    b'{"k":NaN}': "NaN is not JSON",
    b'{"k":"\xff"}': "byte 6 is not UTF-8",
    b'{"other":1}': "the key, member 'k', must be a string",
    b'{"k":true}': "the key, member 'k', must be a string",
    b'{"k":""}': "a key has 1 to 250 bytes, not 0",
    b'{"k":"%s"}' % (b"x" * 251): "a key has 1 to 250 bytes, not 251",
    b'{"k":"\\ud800"}': "character 0 is not UTF-8",
    b"[" * 100_000: "the JSON is nested too deeply",
}


@pytest.mark.parametrize(("line", "problem"), BAD_NDJSON.items(), ids=BAD_NDJSON.values())
def test_a_bad_line_of_ndjson_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    file = tmp_path / "data.ndjson"
    file.write_bytes(b'{"k":"first"}\n\n' + line + b'\n{"k":"after"}\n')
    keys, bad = read(from_ndjson, file)
    assert keys == [b"first", b"after"]
    assert str(bad).startswith(f"{file}, line 3: {problem}")


BAD_CSV = {
    b"only one": "1 fields where the header has 2",
    b"a,b,c": "3 fields where the header has 2",
    b'"a"b,c': "',' expected after",
    b"a,\xff": "is not UTF-8",
    b",x": "a key has 1 to 250 bytes, not 0",
}


@pytest.mark.parametrize(("row", "problem"), BAD_CSV.items(), ids=BAD_CSV.values())
def test_a_bad_row_of_csv_is_named_by_its_first_line(
    tmp_path: Path, row: bytes, problem: str
) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b'k,v\nfirst,"two\nlines"\n' + row + b"\nafter,x\n")
    keys, bad = read(from_csv, file)
    assert keys == [b"first", b"after"]
    assert str(bad).startswith(f"{file}, line 4: ")
    assert problem in bad.problem


@pytest.mark.parametrize(
    ("name", "text"), [("data.csv", "k\n0\n1,2\n3\n"), ("data.ndjson", '\n{"k":0}\n{\n{"k":3}\n')]
)
def test_a_bad_line_stops_a_load_or_is_counted(
    producer: TemporaryProducer, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    words = (address(producer), "--file", file, "--key", "k")
    line = complaint(*words)
    assert line.startswith(f"{file}, line 3: ")
    assert line.endswith("--skip-bad skips such lines (documents written before: 1)")
    assert count(producer) == 1
    said = loaded(*words, "--skip-bad")
    assert (said["documents"], said["skipped"]) == (2, 1)
    assert run(*words, "--skip-bad").stdout.endswith("; bad lines skipped: 1\n")
    assert count(producer) == 2


def test_a_csv_file_whose_header_is_wrong_cannot_be_skipped(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("k,k\n1,2\n")
    with pytest.raises(BadLine, match="line 1: the header repeats a name"):
        read(from_csv, file)


def test_a_line_that_is_too_long_does_not_end_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upriver.cli.load.document_sources.MAX_VALUE", 20)
    file = tmp_path / "data.ndjson"
    file.write_text('{"n":"' + "x" * 100 + '"}\n{"n":2}\n' + '{"n":"' + "y" * 12 + '"}\n')
    bad: list[BadLine] = []
    with file.open("rb") as opened:
        found = list(from_ndjson(opened, prefix="p", on_bad=bad.append))
    assert found == [(b"p1", b'{"n":2}'), (b"p2", b'{"n":"yyyyyyyyyyyy"}')]
    assert [(line.line, line.problem) for line in bad] == [(1, "a document has at most 20 bytes")]


def test_an_empty_csv_file_has_no_documents(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.touch()
    with file.open("rb") as opened:
        assert list(from_csv(opened, prefix="p")) == []


# ---- pace --------------------------------------------------------------------------------


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.flushes = 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def flush(self) -> None:
        self.flushes += 1


@pytest.mark.parametrize("rate", [0.5, 3.0, 100.0, 12_345.0])
def test_a_rate_is_kept(rate: float) -> None:
    time = Time()
    pace = Pace(rate, clock=time.clock, sleep=time.sleep)
    written = 200
    for at in range(written):
        pace.wait(time.flush)
        assert at <= (time.now - 100) * rate + 1e-6  # never early
    assert (time.now - 100) * rate <= written + rate * Pace.TICK
    # what was written goes out before each sleep, and fast rates sleep for several at once
    assert time.flushes <= min(written, 1 + (time.now - 100) / Pace.TICK)


def test_a_server_that_stood_still_is_not_flooded() -> None:
    time = Time()
    pace = Pace(10, clock=time.clock, sleep=time.sleep)
    pace.wait(time.flush)
    time.now += 3600
    resumed = time.now
    at_once = 0
    while time.now == resumed:
        at_once += 1
        pace.wait(time.flush)
    assert at_once <= 10 * Pace.CATCH_UP + 2


def test_a_rate_on_the_command_line(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(
        "upriver.cli.load.load_run.Pace",
        lambda rate: Pace(rate, clock=time.clock, sleep=time.sleep),
    )
    assert loaded(address(producer), "--docs", "30", "--rate", "10")["documents"] == 30
    assert time.now - 100 == pytest.approx(2.9)


# ---- who and where -----------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TemporaryProducer]:
    users = Users()
    users.add("writer", "s3crët", Grant(Role.WRITE_DATA), iterations=4096)
    users.add("reader", "p4ssword", Grant(Role.READ_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json", authentication_delay=0)
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as running:
        yield running


def test_a_user_with_a_password(guarded: TemporaryProducer, tmp_path: Path) -> None:
    words = (address(guarded), "--docs", "5", "--user", "writer")
    assert loaded(*words, UPRIVER_PASSWORD="s3crët")["documents"] == 5
    (tmp_path / "password").write_text("s3crët\n")
    assert loaded(*words, "--password-file", tmp_path / "password")["documents"] == 5


@pytest.mark.parametrize(
    ("words", "password", "said"),
    [
        (["--user", "writer"], "wrong", "authentication failed for user 'writer'"),
        (["--user", "nobody"], "s3crët", "authentication failed for user 'nobody'"),
        (["--user", "writer"], "", "there is no password for writer"),
        (["--user", "reader"], "p4ssword", "the user may not write"),
        ([], "", "give a user"),
    ],
)
def test_a_user_who_may_not(
    guarded: TemporaryProducer, words: list[str], password: str, said: str
) -> None:
    line = complaint(address(guarded), "--docs", "5", *words, UPRIVER_PASSWORD=password)
    assert said in line
    assert not password or password not in line


def test_tls(tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    settings = ServerSettings(certificate=files.certificate, key=files.key)
    with TemporaryProducer(vbuckets=VBUCKETS, settings=settings) as producer:
        secure = address(producer, scheme="couchbases")
        assert loaded(secure, "--docs", "9000", "--ca", files.authority)["documents"] == 9000
        assert loaded(secure, "--docs", "5", "--insecure")["documents"] == 5
        assert count(producer) == 9000
        assert "makes no TLS connection" in complaint(secure, "--docs", "5")
        assert "couchbases://" in complaint(address(producer), "--docs", "5")
        no_certificates = complaint(secure, "--docs", "5", "--ca", files.key)
        assert "has no CA certificates" in no_certificates


def test_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = complaint(f"couchbase://127.0.0.1:{port}/default", "--docs", "1")
    assert line.startswith(f"127.0.0.1:{port} cannot be reached: Connection refused; ")


def test_a_bucket_that_is_not_there(producer: TemporaryProducer) -> None:
    line = complaint(address(producer, bucket="other"), "--docs", "1")
    assert "has no bucket other" in line


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "http://localhost/b",
        "couchbase:///b",
        "couchbase://h",
        "couchbase://h/",
        "couchbase://h/a/b",
        "couchbase://h:99999/b",
        "couchbase://h:x/b",
        "couchbase://h/b?ssl=no",
        "couchbase://me:secret@h/b",
    ],
)
def test_a_source_that_is_none(text: str) -> None:
    line = complaint(text, "--docs", "1")
    assert "secret" not in line


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--docs", "0"],
        ["--docs", "1", "--rate", "0"],
        ["--docs", "1", "--key", "k"],
        ["--docs", "1", "--skip-bad"],
        ["--file", "-", "--size", "3"],
        ["--docs", "1", "--prefix", "x" * 201],
    ],
)
def test_options_that_make_no_sense(words: list[str]) -> None:
    assert run("couchbase://h/b", *words).exit_code == 2


# ---- servers that refuse, and other servers ------------------------------------------------


def test_a_refused_write_is_named(
    producer: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "upriver.cli.load.load_run.SETTINGS", replace(load_run.SETTINGS, retry_timeout=0)
    )
    victim = vbucket_of(b"doc3", VBUCKETS)
    producer.set_state(victim, VBucketState.DEAD)
    line = complaint(address(producer), "--docs", "100")
    assert "writing the document 'doc" in line
    assert f"refused with NOT_MY_VBUCKET: {producer.host}:{producer.port} does not have" in line
    assert line.endswith("(documents written before: 0)")


def test_a_load_waits_for_a_vbucket_that_comes_back(producer: TemporaryProducer) -> None:
    victim = vbucket_of(b"doc3", VBUCKETS)
    producer.set_state(victim, VBucketState.DEAD)
    back = threading.Timer(0.2, producer.set_state, (victim, VBucketState.ACTIVE))
    back.start()
    try:
        assert loaded(address(producer), "--docs", "100")["documents"] == 100
    finally:
        back.join()
    assert count(producer) == 100


def test_documents_with_the_same_key_all_count(producer: TemporaryProducer) -> None:
    lines = '{"k":"a","n":0}\n{"k":"b","n":1}\n{"k":"a","n":2}\n'
    said = loaded(address(producer), "--file", "-", "--key", "k", stdin=lines)
    assert said["documents"] == 3
    assert document(producer, "a") == {"k": "a", "n": 2}
    assert count(producer) == 2


# ---- a real process ----------------------------------------------------------------------


def test_the_real_process(producer: TemporaryProducer, tmp_path: Path) -> None:
    def upriver(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "upriver", "load", address(producer), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = upriver("--docs", "1000", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["documents"] == 1000
    assert count(producer) == 1000
    bad = tmp_path / "bad.ndjson"
    bad.write_text("{}\nnonsense\n")
    failed = upriver("--file", str(bad))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(f"error: {bad}, line 2: not JSON: ")
    assert failed.stderr.count("\n") == 1
