"""Damage, full disks, foreign hands: one clear error each, and nothing half done."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from storekit import QUIET, dump, key, put, value
from waiting import until

from upriver.errors import StoreClosed, StoreDamaged, StoreError, StoreFull
from upriver.model import VBucketState
from upriver.store import (
    Applied,
    Bucket,
    BucketSettings,
    DeleteDocument,
    SetDocument,
    Store,
    SyncMode,
)

pytestmark = pytest.mark.story

DATA = Path("buckets") / "b" / "data"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A store with some hundred documents, part in sorted files and part in the log."""
    path = tmp_path / "store"
    with Store(path) as store:
        bucket = store.create_bucket("b", QUIET)
        bucket.write_many([SetDocument(n % 4, key(f"k{n}"), b"x" * 500) for n in range(400)])
        bucket.compact()
    # Closing writes the log's content to files as well, so the rest ends without closing.
    code = f"""
import os
from storekit import *
from upriver.store import *
bucket = Store({str(path)!r}).bucket("b")
for n in range(400, 440):
    bucket.write(SetDocument(n % 4, key(f"k{{n}}"), b"y" * 500))
os._exit(0)
"""
    run_python(code)
    return path


def run_python(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        **options,
    )


def newest(path: Path, pattern: str) -> Path:
    files = sorted((path / DATA).glob(pattern))
    return max(files, key=lambda file: (file.stat().st_size > 0, file.name))


def whole(bucket: Bucket) -> int:
    """How many of the documents are there, each of them as it was written."""
    assert bucket.verify() == []
    found = [message for vbucket in range(4) for message in dump(bucket, vbucket)]
    assert {message.value for message in found} <= {b"x" * 500, b"y" * 500}
    return len(found)


def test_without_damage(written: Path) -> None:
    with Store(written) as store:
        assert whole(store.bucket("b")) == 440


def test_a_log_that_was_cut_off_is_recovered_up_to_there(written: Path) -> None:
    draw = random.Random(3)
    log = newest(written, "*.log")
    content = log.read_bytes()
    for _ in range(12):
        copy = written.with_name("copy")
        shutil.copytree(written, copy)
        (copy / DATA / log.name).write_bytes(content[: draw.randrange(len(content))])
        with Store(copy) as store:
            found = whole(store.bucket("b"))
        assert 400 <= found < 440
        shutil.rmtree(copy)


def test_a_log_with_damage_in_the_middle_is_refused_unless_asked_for(written: Path) -> None:
    log = newest(written, "*.log")
    content = bytearray(log.read_bytes())
    at = len(content) // 2
    content[at : at + 40] = bytes(byte ^ 0xFF for byte in content[at : at + 40])
    log.write_bytes(content)
    with Store(written) as store:
        with pytest.raises(StoreDamaged, match="Corruption"):
            store.bucket("b")
        bucket = store.bucket("b", salvage=True)
        assert 400 <= whole(bucket) < 440
        assert all(len(bucket.failover_log(vbucket)) == 2 for vbucket in range(4))
        bucket.close()
        assert len(store.bucket("b").failover_log(0)) == 2


def test_a_salvaged_replica_keeps_its_branch(written: Path) -> None:
    with Store(written) as store:
        store.bucket("b").set_state(1, VBucketState.REPLICA)
    with Store(written) as store:
        bucket = store.bucket("b", salvage=True)
        assert [len(bucket.failover_log(vbucket)) for vbucket in range(4)] == [2, 1, 2, 2]


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("CURRENT", lambda content: b"rubbish"),
        ("CURRENT", lambda content: b""),
        ("CURRENT", lambda content: b"MANIFEST-999999\n"),
        ("MANIFEST-*", lambda content: content[: len(content) // 2]),
        ("MANIFEST-*", lambda content: b""),
        ("MANIFEST-*", lambda content: b"\xff" * len(content)),
        ("*.sst", lambda content: content[: len(content) // 2]),
        ("*.sst", lambda content: b""),
        ("*.sst", lambda content: content[:-60] + b"\xff" * 60),
    ],
)
def test_damaged_files_are_refused_with_what_is_wrong(
    written: Path, pattern: str, damage: object
) -> None:
    file = max((written / DATA).glob(pattern), key=lambda path: path.stat().st_size)
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    before = {path.name: path.read_bytes() for path in (written / DATA).glob("*.sst")}
    with Store(written) as store:
        with pytest.raises(StoreDamaged) as refused:
            store.bucket("b")
        assert refused.value.path.endswith("data")
        assert refused.value.problem
    assert {path.name: path.read_bytes() for path in (written / DATA).glob("*.sst")} == before


def test_a_missing_sorted_file_is_refused(written: Path) -> None:
    max((written / DATA).glob("*.sst"), key=lambda path: path.stat().st_size).unlink()
    with Store(written) as store, pytest.raises(StoreDamaged):
        store.bucket("b")


def test_a_block_that_cannot_be_read_is_never_skipped(written: Path) -> None:
    """A reader that meets it fails; it does not end as if that were all."""
    file = max((written / DATA).glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    at = len(content) // 3
    content[at : at + 100] = bytes(byte ^ 0xFF for byte in content[at : at + 100])
    file.write_bytes(content)
    failed = 0
    with Store(written) as store:
        try:
            bucket = store.bucket("b")
        except StoreDamaged:
            return
        for vbucket in range(4):
            try:
                dump(bucket, vbucket)
            except StoreDamaged:
                failed += 1
        assert failed
        names = [key(f"k{number}") for number in range(400)]
        with pytest.raises(StoreDamaged):
            [bucket.get(number % 4, name) for number, name in enumerate(names)]
        with pytest.raises(StoreDamaged):
            bucket.verify()


def test_entries_that_contradict_each_other_are_refused(written: Path) -> None:
    with Store(written) as store:
        engine = store.bucket("b")._core.engine
        last = engine.seqnos.last((b"\0\1", b"\0\2"))
        assert last is not None
        del engine.keys.data[b"\0\1" + last[1][55 : 55 + int.from_bytes(last[1][2:4])]]
        del engine
    with Store(written) as store, pytest.raises(StoreDamaged, match="vbucket 1 ends with seqno"):
        store.bucket("b")


def test_verifying_finds_what_contradicts_itself(written: Path) -> None:
    with Store(written) as store:
        bucket = store.bucket("b")
        engine = bucket._core.engine
        (lost, _), *_ = engine.seqnos.scan((b"\0\1", b"\0\2"))
        (unknown, _), *_ = engine.keys.scan((b"\0\2", b"\0\3"))
        del engine.seqnos.data[lost]
        del engine.keys.data[unknown]
        found = "\n".join(bucket.verify())
        del engine
    assert "is known by key at seqno 1, which is not there" in found
    assert "vbucket 1: 109 items are there, 110 counted" in found
    assert "is not known by key" in found


@pytest.mark.parametrize("name", [b"vbucket/\0\2", b"manifest", b"session"])
@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_unreadable_metadata_is_refused(written: Path, name: bytes, content: bytes | None) -> None:
    with Store(written) as store:
        bucket = store.bucket("b")
        bucket._core._mark_session = lambda **_: None  # type: ignore[method-assign]
        meta = bucket._core.engine.meta.data
        if content is None:
            del meta[name]
        else:
            meta[name] = content
        del meta
    with Store(written) as store, pytest.raises(StoreDamaged):
        store.bucket("b")


def test_one_damaged_bucket_does_not_touch_its_neighbours(written: Path) -> None:
    (written / DATA / "CURRENT").write_text("rubbish")
    with Store(written) as store:
        with pytest.raises(StoreDamaged):
            store.bucket("b")
        put(store.create_bucket("c", QUIET), "k")
        store.drop_bucket("b")
        assert store.buckets() == ["c"]


# ---- other processes ---------------------------------------------------------------------


def test_a_second_process_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    code = f"""
from upriver.errors import StoreLocked
from upriver.store import Store
try:
    Store({str(tmp_path)!r})
except StoreLocked as refused:
    print(refused.holder)
"""
    with Store(tmp_path):
        assert run_python(code).stdout.startswith(f"process {os.getpid()} on ")
    assert run_python(code).stdout == ""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = f"""
import os, signal
from upriver.store import Store
store = Store({str(tmp_path)!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    with pytest.raises(subprocess.CalledProcessError):
        run_python(code)
    Store(tmp_path).close()


# ---- full disks --------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small file system: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(bucket: Bucket) -> tuple[dict[bytes, int], StoreError]:
    """Writes until that fails; returns what was acknowledged, and the error."""
    acknowledged: dict[bytes, int] = {}
    for number in range(10_000):
        name = key(f"k{number}")
        try:
            outcomes = bucket.write_many([SetDocument(0, name, os.urandom(20_000))])
        except StoreError as error:
            return acknowledged, error
        assert isinstance(outcomes[0], Applied)
        acknowledged[name] = outcomes[0].seqno
    raise AssertionError("it never was full")


SMALL = BucketSettings(vbuckets=1, maintenance_interval=0, write_memory=1024 * 1024)


def test_a_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 * 1024 * 1024))  # recovery writes what its log holds once more
    store = Store(small_disk / "store")
    bucket = store.create_bucket("b", SMALL)
    acknowledged, error = fill(bucket)
    assert isinstance(error, StoreFull)
    assert acknowledged
    high = bucket.vbucket_stats(0).high_seqno
    assert high == max(acknowledged.values())
    with pytest.raises(StoreFull):  # and stays so until there is room
        bucket.write(SetDocument(0, key("more"), b""))
    with pytest.raises(StoreFull):
        bucket.write_many([DeleteDocument(0, next(iter(acknowledged)))])
    assert bucket.get(0, next(iter(acknowledged))).seqno == 1
    store.close()
    ballast.unlink()
    with Store(small_disk / "store") as store:
        bucket = store.bucket("b")
        for name, seqno in acknowledged.items():
            assert bucket.get(0, name).seqno == seqno
        assert bucket.vbucket_stats(0).high_seqno in (high, high + 1)
        assert bucket.verify() == []
        bucket.write(SetDocument(0, key("more"), b""))


def write_until_it_succeeds(bucket: Bucket) -> Applied:
    """Writes as a client that comes again after a temporary failure."""

    def write() -> Applied | None:
        try:
            return bucket.write(SetDocument(0, key("after"), b"there is room"))
        except StoreError as error:
            assert getattr(error, "is_temporary", False), error
            return None

    return until(write)


def recovered(
    bucket: Bucket, acknowledged: dict[bytes, int], log: pytest.LogCaptureFixture
) -> None:
    """Writes go on, nothing that was acknowledged is lost, and the log tells each thing once."""
    branches = len(bucket.failover_log(0))
    moved: list[int] = []
    end = bucket.subscribe(lambda highs: moved.append(highs[0]))
    done = write_until_it_succeeds(bucket)
    end()
    assert moved[-1] == done.seqno
    assert done.seqno in (len(acknowledged) + 1, len(acknowledged) + 2)  # with what had failed
    for name, seqno in acknowledged.items():
        assert bucket.get(0, name).seqno == seqno
    assert bucket.verify() == []
    assert len(bucket.failover_log(0)) == branches
    said = [record.getMessage() for record in log.records if record.name == "upriver.store"]
    assert sum("refuses writes until this is mended" in line for line in said) == 1
    assert sum("takes writes again" in line for line in said) == 1


@pytest.mark.parametrize("durability", SyncMode)
def test_writes_go_on_when_a_full_disk_has_room_again(
    small_disk: Path, durability: SyncMode, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 * 1024 * 1024))
    with Store(small_disk / "store") as store:
        bucket = store.create_bucket("b", replace(SMALL, durability=durability))
        reader = bucket.open_reader(0)
        acknowledged, error = fill(bucket)
        assert isinstance(error, StoreFull)
        for _ in range(3):
            with pytest.raises(StoreFull):
                bucket.write(SetDocument(0, key("more"), b""))
        ballast.unlink()
        recovered(bucket, acknowledged, caplog)
        with pytest.raises(StoreClosed):  # its view went with the files that were open
            reader.read()
        assert dump(bucket, 0)[-1].key == b"after"
    with Store(small_disk / "store") as store:
        bucket = store.bucket("b")
        for name, seqno in acknowledged.items():
            assert bucket.get(0, name).seqno == seqno


def test_maintenance_goes_on_when_a_full_disk_has_room_again(small_disk: Path) -> None:
    """A bucket that nobody writes to mends itself."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 * 1024 * 1024))
    with Store(small_disk / "store") as store:
        bucket = store.create_bucket("b", replace(SMALL, maintenance_interval=0.1))
        bucket.write(SetDocument(0, key("short"), b"", expiry=int(time.time()) + 1))
        _, error = fill(bucket)
        assert isinstance(error, StoreFull)
        ballast.unlink()
        until(lambda: bucket.vbucket_stats(0).tombstones)


@pytest.mark.parametrize(
    ("limit", "narrow", "wide", "kind"),
    [("RLIMIT_FSIZE", 300_000, 2**30, "StoreFull"), ("RLIMIT_NOFILE", 0, 1024, "StoreOutOfFiles")],
)
def test_writes_go_on_when_a_limit_of_the_process_is_raised(
    tmp_path: Path, limit: str, narrow: int, wide: int, kind: str
) -> None:
    code = f"""
import resource
from test_store_faults import *
bucket = Store({str(tmp_path)!r}).create_bucket("b", SMALL)
_, most = resource.getrlimit(resource.{limit})
in_use = len(os.listdir("/proc/self/fd")) if {narrow} == 0 else {narrow}
resource.setrlimit(resource.{limit}, (in_use, most))
acknowledged, error = fill(bucket)
print(type(error).__name__, len(acknowledged))
resource.setrlimit(resource.{limit}, ({wide}, most))
print(write_until_it_succeeds(bucket).seqno - len(acknowledged) in (1, 2))
print(all(bucket.get(0, name).seqno == seqno for name, seqno in acknowledged.items()))
print(bucket.verify())
os._exit(0)
"""
    told = run_python(code).stdout.split("\n")
    assert told[0].split()[0] == kind
    assert told[1:] == ["True", "True", "[]", ""]
    with Store(tmp_path) as store:
        bucket = store.bucket("b")
        assert bucket.vbucket_stats(0).high_seqno > int(told[0].split()[1])
        assert bucket.verify() == []


def test_a_disk_too_full_for_a_new_store_or_bucket(small_disk: Path) -> None:
    with Store(small_disk / "one") as store:
        (small_disk / "ballast").write_bytes(bytes(8 * 1024 * 1024 - 40_000))
        with pytest.raises(StoreFull):
            store.create_bucket("b", SMALL)
        assert store.buckets() == []
        (small_disk / "ballast").unlink()
        store.create_bucket("b", SMALL)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = f"""
import resource
from test_store_faults import *
bucket = Store({str(tmp_path)!r}).create_bucket("b", SMALL)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
acknowledged, error = fill(bucket)
print(type(error).__name__, len(acknowledged))
os._exit(0)
"""
    kind, count = run_python(code).stdout.split()
    assert kind == "StoreFull"
    with Store(tmp_path) as store:
        bucket = store.bucket("b")
        assert bucket.vbucket_stats(0).high_seqno >= int(count)
        assert bucket.verify() == []


# ---- directories that may not be written -------------------------------------------------


def test_a_directory_that_may_not_be_written() -> None:
    """As another user, because root may write everything."""
    if os.geteuid() != 0:
        pytest.skip("changing to another user needs root")
    home = Path(tempfile.mkdtemp(prefix="upriver-readonly-"))
    try:
        home.chmod(0o755)
        with Store(home / "store") as store:
            put(store.create_bucket("b", QUIET), "k")
        code = f"""
import os
from upriver.errors import StoreNotWritable
from upriver.store import Store
os.setgid(65534)
os.setuid(65534)
for path in ({str(home / "store")!r}, {str(home / "new")!r}):
    try:
        Store(path)
    except StoreNotWritable as refused:
        print("refused", refused.path == path)
"""
        assert run_python(code).stdout == "refused True\n" * 2
        with Store(home / "store") as store:
            assert value(store.bucket("b"), "k") == "value"
    finally:
        shutil.rmtree(home)
