"""A file that is replaced has its old or its new content, and nothing is left beside it."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from upriver._files import create_file, replace_file, sync_directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    replace_file(path, b"old")
    return path


def test_a_file_is_created_and_replaced(file: Path) -> None:
    assert file.read_bytes() == b"old"
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(file.parent.iterdir()) == [file]


def test_an_open_file_is_copied(file: Path) -> None:
    replace_file(file, io.BytesIO(b"copied"))
    assert file.read_bytes() == b"copied"


class Broken(io.BytesIO):
    """Fails in the middle of being written elsewhere."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("point", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_content_and_no_other_file(
    file: Path, point: str, unique: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    if point != "write":
        monkeypatch.setattr(os, point, fail)
    content = Broken() if point == "write" else b"new"
    with pytest.raises(OSError, match="No space left" if point == "write" else "Input/output"):
        replace_file(file, content, unique=unique)
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_what_a_killed_process_left_is_removed(file: Path) -> None:
    left = file.with_name("state.json.new")
    left.write_bytes(b"half of a longer content")
    left.chmod(0o666)
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert mode_of(file) == 0o600
    assert not left.exists()


def test_a_link_in_place_of_the_new_file_is_not_followed(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"of somebody else")
    file.with_name("state.json.new").symlink_to(other)
    replace_file(file, b"new")
    assert other.read_bytes() == b"of somebody else"
    assert file.read_bytes() == b"new"


def test_modes(file: Path) -> None:
    before = os.umask(0o027)
    try:
        assert mode_of(file) == 0o600
        replace_file(file, b"for others", private=False)
        assert mode_of(file) == 0o640
        replace_file(file, b"as it was", keep_mode=True)
        assert mode_of(file) == 0o640
        file.chmod(0o664)
        replace_file(file, b"as it was, whatever the umask", keep_mode=True)
        assert mode_of(file) == 0o664
        replace_file(file, b"private again")
        assert mode_of(file) == 0o600
        replace_file(file.with_name("fresh"), b"there is none to be like", keep_mode=True)
        assert mode_of(file.with_name("fresh")) == 0o600
    finally:
        os.umask(before)


def test_file_and_directory_are_synced_in_this_order(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        kind = os.fstat(descriptor).st_mode
        done.append("directory" if stat.S_ISDIR(kind) else "file")
        sync(descriptor)

    def replaced(one: Path, other: Path) -> None:
        done.append("rename")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    replace_file(file, b"new")
    assert done == ["file", "rename", "directory"]
    done.clear()
    replace_file(file, b"newer", durable=False)
    assert done == ["rename"]
    sync_directory(file.parent)
    assert done == ["rename", "directory"]


def test_a_file_that_exists_is_not_created_and_not_removed(file: Path) -> None:
    with pytest.raises(FileExistsError):
        create_file(file, b"new")
    assert file.read_bytes() == b"old"
