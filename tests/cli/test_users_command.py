"""``upriver users``: a file that lets people in and holds no password."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from talk import Talk

from upriver.cli.main import cli
from upriver.errors import ConfigError, Status
from upriver.producer.bootstrap.users import Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv

pytestmark = pytest.mark.story


def run(*arguments: str | Path, password: str = "open sesame") -> Result:
    return CliRunner().invoke(
        cli, ["users", *map(str, arguments)], env={"UPRIVER_PASSWORD": password}
    )


def test_users_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    assert (
        run("add", file, "app", "--role", "read_data:shop", "--role", "write_data:shop").exit_code
        == 0
    )
    assert run("add", file, "reader", "--role", "read_stream").exit_code == 0
    assert run("list", file).output == "app\tread_data:shop write_data:shop\nreader\tread_stream\n"
    users = Users.load(file)
    assert users.may("app", "shop", Role.WRITE_DATA)
    assert not users.may("app", "other", Role.READ_DATA)
    assert users.authenticate("app", "open sesame") == "app"
    assert "sesame" not in file.read_text()
    assert run("remove", file, "app").exit_code == 0
    assert run("list", file).output == "reader\tread_stream\n"


def test_a_server_asks_those_users(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    run("add", file, "reader", "--role", "read_stream")
    with TemporaryProducer(settings=ServerSettings(users=file)) as producer, Talk(producer) as talk:
        assert talk.ask(kv.Get(key=b"k")).status is Status.NO_ACCESS


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("add", "reader", "--role", "king"), "'king' is not a role"),
        (("remove", "nobody"), "has no user 'nobody'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    file = tmp_path / "users.json"
    run("add", file, "someone", "--role", "read_data")
    result = run(arguments[0], file, *arguments[1:])
    assert isinstance(result.exception, ConfigError)
    assert problem in str(result.exception)


def test_a_password_can_be_typed(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    typed = CliRunner(env={"UPRIVER_PASSWORD": ""}).invoke(
        cli, ["users", "add", str(file), "a", "--role", "administer"], input="pw\npw\n"
    )
    assert typed.exit_code == 0
    assert Users.load(file).authenticate("a", "pw") == "a"
