"""``upriver users``: manages the users file of a server (SCRAM verifiers and roles)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from ...errors import ConfigError
from ...producer.bootstrap.users import ALL_BUCKETS, Grant, Role, Users
from ..suggestions import SuggestingGroup

#: The environment variable with the password, for use without a terminal.
PASSWORD_VARIABLE: Final = "UPRIVER_PASSWORD"

_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=SuggestingGroup)
def users() -> None:
    """Manage the users file of `upriver serve --users FILE`.

    The file holds SCRAM verifiers and roles, never a password.

    \b
    Examples:
      upriver users add users.json reader --role read_stream
      upriver users add users.json app --role read_data:shop --role write_data:shop
      upriver users list users.json
    """


@users.command()
@_FILE
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    metavar="ROLE[:BUCKET]",
    help=f"One of {', '.join(Role)}; for one bucket, or for all. May be repeated.",
)
def add(file: Path, name: str, roles: tuple[str, ...]) -> None:
    """Add a user, or replace the one of that name.

    The password is asked for, or taken from the environment variable UPRIVER_PASSWORD.
    """
    grants = [_grant(role) for role in roles]
    known = Users.load(file) if file.exists() else Users()
    password = os.environ.get(PASSWORD_VARIABLE) or click.prompt(
        "Password", hide_input=True, confirmation_prompt=True
    )
    known.add(name, password, *grants)
    known.save(file)
    click.echo(f"{name} may {', '.join(roles)}")


@users.command()
@_FILE
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove a user."""
    known = Users.load(file)
    if name not in known:
        raise ConfigError(f"{file} has no user {name!r}")
    known.remove(name)
    known.save(file)


@users.command("list")
@_FILE
def list_users(file: Path) -> None:
    """Print every user with its roles."""
    for user in sorted(Users.load(file), key=lambda user: user.name):
        roles = sorted(
            grant.role if grant.bucket == ALL_BUCKETS else f"{grant.role}:{grant.bucket}"
            for grant in user.grants
        )
        click.echo(f"{user.name}\t{' '.join(roles)}")


def _grant(text: str) -> Grant:
    name, _, bucket = text.partition(":")
    try:
        role = Role(name)
    except ValueError:
        raise ConfigError(f"{name!r} is not a role; the roles are {', '.join(Role)}") from None
    return Grant(role, bucket or ALL_BUCKETS)
