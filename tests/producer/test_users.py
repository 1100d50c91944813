"""Users: what they may do, how they are kept, and what a file of them must look like."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from upriver.errors import ConfigError
from upriver.producer.bootstrap.users import (
    ITERATIONS,
    MAX_NAME,
    MAX_PASSWORD,
    MIN_ITERATIONS,
    Digest,
    Grant,
    Role,
    Users,
)


def make(*grants: Grant, name: str = "ann", password: str = "secret") -> Users:
    users = Users()
    users.add(name, password, *grants, iterations=MIN_ITERATIONS)
    return users


# ---- roles -------------------------------------------------------------------------------


def test_a_role_holds_in_its_bucket_only() -> None:
    users = make(Grant(Role.READ_DATA, "travel"), Grant(Role.WRITE_DATA, "beer"))
    assert users.may("ann", "travel", Role.READ_DATA)
    assert not users.may("ann", "travel", Role.WRITE_DATA)
    assert not users.may("ann", "beer", Role.READ_DATA)
    assert not users.may("ann", "other", Role.READ_DATA)
    assert users.roles("ann", "other") == frozenset()


def test_a_role_in_all_buckets_holds_in_those_to_come_and_in_the_server() -> None:
    users = make(Grant(Role.READ_STREAM))
    assert users.roles("ann", "anything") == {Role.READ_STREAM}
    assert users.roles("ann", None) == {Role.READ_STREAM}


def test_a_role_in_one_bucket_is_none_in_the_server() -> None:
    users = make(Grant(Role.ADMINISTER, "travel"))
    assert users.roles("ann", None) == frozenset()


def test_administering_includes_the_rest() -> None:
    users = make(Grant(Role.ADMINISTER, "travel"))
    assert users.roles("ann", "travel") == set(Role)
    assert users.roles("ann", "beer") == frozenset()


def test_who_is_not_a_user_may_do_nothing() -> None:
    users = make(Grant(Role.ADMINISTER))
    for name in (None, "", "bob", "ANN"):
        assert users.roles(name, "travel") == frozenset()


def test_without_users_everybody_may_do_everything_until_there_is_one() -> None:
    users = Users.unrestricted()
    assert users.is_unrestricted
    assert users.roles(None, None) == set(Role)
    assert users.authenticate("bob", "anything") == "bob"
    users.add("ann", "secret", iterations=MIN_ITERATIONS)
    assert not users.is_unrestricted
    assert users.roles(None, "travel") == frozenset()  # type: ignore[unreachable]
    assert users.authenticate("bob", "anything") is None


def test_the_last_user_to_go_does_not_open_the_door() -> None:
    users = make(Grant(Role.ADMINISTER))
    users.remove("ann")
    users.remove("ann")
    assert len(users) == 0
    assert not users.is_unrestricted
    assert not users.may("ann", "travel", Role.READ_DATA)
    assert users.authenticate("ann", "secret") is None


# ---- passwords ---------------------------------------------------------------------------


def test_a_password_is_checked_without_being_kept() -> None:
    users = make(password="long and secret")
    assert users.authenticate("ann", "long and secret") == "ann"
    for name, password in [("ann", "Long and secret"), ("ann", ""), ("bob", "long and secret")]:
        assert users.authenticate(name, password) is None
    ann = users.get("ann")
    assert ann is not None
    assert set(ann.verifiers) == set(Digest)
    assert len({verifier.salt for verifier in ann.verifiers.values()}) == len(Digest)
    assert "key" not in repr(ann)


def test_adding_again_replaces_password_and_roles() -> None:
    users = make(Grant(Role.ADMINISTER))
    users.add("ann", "other", iterations=MIN_ITERATIONS)
    assert len(users) == 1
    assert users.authenticate("ann", "secret") is None
    assert users.authenticate("ann", "other") == "ann"
    assert users.roles("ann", "travel") == frozenset()


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("", "secret"),
        ("ann", ""),
        ("x" * (MAX_NAME + 1), "secret"),
        ("ann", "x" * (MAX_PASSWORD + 1)),
        ("an\0n", "secret"),
        ("ann", "sec\nret"),
        ("ann", "\ue000"),
        ("\u00ad", "secret"),  # a soft hyphen is mapped to nothing
    ],
)
def test_names_and_passwords_that_are_none(name: str, password: str) -> None:
    with pytest.raises(ConfigError):
        Users().add(name, password)
    users = Users()
    users.add("ann", "secret", iterations=MIN_ITERATIONS)
    assert users.authenticate(name, password) is None


def test_without_users_a_name_is_enough() -> None:
    for password in ("", "sec\nret", "x" * (MAX_PASSWORD + 1)):
        assert Users.unrestricted().authenticate("ann", password) == "ann"
    assert Users.unrestricted().authenticate("an\0n", "secret") is None


@pytest.mark.parametrize("iterations", [0, MIN_ITERATIONS - 1, 10**9])
def test_iterations_have_bounds(iterations: int) -> None:
    with pytest.raises(ConfigError, match="iterations"):
        Users().add("ann", "secret", iterations=iterations)


def test_names_and_passwords_are_compared_as_people_see_them() -> None:
    users = make(name="ju\u0308rgen", password="\u2168 a\u00a0b")  # a Roman nine, a hard space
    assert users.authenticate("jürgen", "IX a b") == "jürgen"


# ---- stand-ins ---------------------------------------------------------------------------


@pytest.mark.parametrize("digest", Digest)
def test_a_stand_in_looks_like_a_user_and_stays_the_same(digest: Digest, tmp_path: Path) -> None:
    users = make()
    real, stand_in = users.verifier("ann", digest), users.verifier("bob", digest)
    assert (stand_in.iterations, len(stand_in.salt)) == (real.iterations, len(real.salt))
    users.save(tmp_path / "users.json")
    again = Users.load(tmp_path / "users.json")
    assert again.verifier("bob", digest) == stand_in
    assert again.verifier("ann", digest) == real
    assert Users().verifier("bob", digest) != stand_in


def test_where_iterations_differ_stand_ins_differ_too() -> None:
    users = make()
    users.add("carl", "secret", iterations=MIN_ITERATIONS + 1)
    counts = {users.verifier(f"nobody{n}", Digest.SHA256).iterations for n in range(64)}
    assert counts == {MIN_ITERATIONS, MIN_ITERATIONS + 1}
    assert Users().verifier("nobody", Digest.SHA256).iterations == ITERATIONS


# ---- the file ----------------------------------------------------------------------------


def test_a_file_brings_everything_back(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    users = make(Grant(Role.READ_DATA, "travel"), Grant(Role.READ_STREAM))
    users.add("jürgen", "pässword", Grant(Role.ADMINISTER), iterations=MIN_ITERATIONS)
    users.save(path)
    again = Users.load(path)
    assert list(again) == list(users)
    assert not again.is_unrestricted
    assert again.authenticate("jürgen", "pässword") == "jürgen"
    assert again.roles("ann", "travel") == {Role.READ_DATA, Role.READ_STREAM}


def test_a_file_is_its_owners_and_holds_no_password(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text("something that was there before")
    path.chmod(0o644)
    make(password="unmistakable").save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "unmistakable" not in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["users.json"]


def test_a_file_that_others_can_read_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.json"
    make().save(path)
    with caplog.at_level(logging.WARNING, "upriver.producer"):
        Users.load(path)
        assert not caplog.records
        path.chmod(0o640)
        Users.load(path)
    assert "mode 640" in caplog.text


def test_an_empty_file_of_users_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    Users().save(path)
    assert not Users.load(path).is_unrestricted


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        make().save(tmp_path / "missing" / "users.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        Users.load(tmp_path / "missing" / "users.json")


def test_a_file_stays_as_it_was_if_the_new_one_cannot_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        make().save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["users.json"]


def damaged() -> dict[str, str]:
    def with_user(**changes: object) -> str:
        verifiers = {
            digest: {"iterations": 4096, "salt": "AAAA", "stored_key": "", "server_key": ""}
            for digest in Digest
        }
        user = {"name": "ann", "grants": [], "verifiers": verifiers, **changes}
        return json.dumps({"format": 1, "secret": "AAAA", "users": [user]})

    return {
        "nothing": "",
        "no JSON": "{",
        "no object": "[]",
        "no members": "{}",
        "another format": '{"format": 2, "secret": "AAAA", "users": []}',
        "no list": '{"format": 1, "secret": "AAAA", "users": 7}',
        "no user": '{"format": 1, "secret": "AAAA", "users": [7]}',
        "bad secret": '{"format": 1, "secret": "?", "users": []}',
        "short keys": with_user(),
        "no verifiers": with_user(verifiers={}),
        "no name": with_user(name=7),
        "an unknown role": with_user(grants=[{"role": "king", "bucket": "*"}]),
        "a grant without a bucket": with_user(grants=[{"role": "read_data"}]),
        "not UTF-8": "\udcff",
    }


@pytest.mark.parametrize("how", damaged())
def test_a_damaged_file_is_refused(how: str, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(damaged()[how].encode(errors="surrogateescape"))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is damaged"):
        Users.load(path)


@pytest.mark.parametrize("iterations", [4095, 5000.5, "5000", None])
def test_a_file_with_iterations_that_are_none(iterations: object, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    make().save(path)
    stored = json.loads(path.read_text())
    stored["users"][0]["verifiers"]["sha256"]["iterations"] = iterations
    path.write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="is damaged"):
        Users.load(path)


def test_a_file_with_a_user_twice(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    make().save(path)
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "users": stored["users"] * 2}))
    with pytest.raises(ConfigError, match="twice"):
        Users.load(path)
