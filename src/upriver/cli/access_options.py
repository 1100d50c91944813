"""Options that commands share: who we are to a server, and which collections are meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from ..consumer.access import Access
from ..errors import ConfigError

__all__ = ["access_options", "collection_options"]

_PASSWORD_VARIABLE: Final = "UPRIVER_PASSWORD"
_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

_Command = Callable[..., None]


def access_options(command: _Command) -> _Command:
    """Adds --user, --password-file, --ca and --insecure; the command gets an `Access`."""

    @click.option("--user", default="", help="Who we are, where the server has users.")
    @click.option("--password-file", type=_EXISTING_FILE, help=f"Or set {_PASSWORD_VARIABLE}.")
    @click.option("--ca", type=_EXISTING_FILE, help="The authority of the server's certificate.")
    @click.option("--insecure", is_flag=True, help="Believe any certificate.")
    @wraps(command)
    def with_access(
        *arguments: Any,
        user: str,
        password_file: Path | None,
        ca: Path | None,
        insecure: bool,
        **options: Any,
    ) -> None:
        access = Access(
            user=user,
            password=_password(password_file) if user else "",
            authority=ca,
            insecure=insecure,
        )
        command(*arguments, access=access, **options)

    return with_access


def collection_options(command: _Command) -> _Command:
    """Adds --collections, as a tuple of names, and --scope."""
    with_scope = click.option("--scope", default="", help="Only the collections of this scope.")
    with_collections = click.option(
        "--collections",
        metavar="LIST",
        default="",
        callback=_names,
        help="Only these, such as shop.orders,shop.people.",
    )
    return with_collections(with_scope(command))


def _names(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _password(file: Path | None) -> str:
    if file is None:
        return os.environ.get(_PASSWORD_VARIABLE, "")
    try:
        return file.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"the password file {file} cannot be read: {problem}") from None
