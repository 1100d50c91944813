"""``upriver get``, ``set``, ``delete`` and ``touch``: one document, by key."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import UpriverError
from ...wire.json_check import is_json
from ...wire.limits import MAX_VALUE
from ..common_options import interruptible
from ..setting_options import access_options, json_option, source_argument

if TYPE_CHECKING:
    from ...consumer.transport.access import Access
    from ...consumer.writing.documents import Documents, Written

_Command = Callable[..., Any]

_EXPIRY_HELP: Final = (
    "When it expires: seconds from now up to 30 days, or seconds since 1970; 0 for never."
)
_MAX_EXPIRY: Final = 2**32 - 1


class _NoDocument(UpriverError):
    """There is no document of that key."""

    def __init__(self, key: str, collection: str) -> None:
        super().__init__(f"there is no document {key!r} in {collection or '_default._default'}")


def _options(command: _Command) -> _Command:
    """What the four commands share: source, key, collection, access and --json."""
    for decorate in (
        json_option(),
        access_options,
        click.option("--collection", metavar="SCOPE.NAME", default="", help="Another collection."),
    ):
        command = decorate(command)
    return command


@click.command()
@source_argument
@click.argument("key")
@_options
def get(
    source: str, key: str, collection: str, access: Access, timeout: float, as_json: bool
) -> None:
    """Print the document KEY as it is stored, or with --json its metadata too.

    \b
    Examples:
      upriver get couchbase://localhost/default order::17
      upriver get couchbase://localhost/shop 17 --collection sales.orders --json

    Exits with 1 if there is none.
    """
    with _documents(source, access, timeout) as documents:
        found = documents.get(key.encode(), collection=collection)
    if found is None:
        raise _NoDocument(key, collection)
    if not as_json:
        sys.stdout.buffer.write(found.value)
        if sys.stdout.isatty():
            click.echo()
        return
    value, value_format = _shown_value(found.value)
    _print_json(
        key=key,
        value=value,
        value_format=value_format,
        cas=found.cas,
        rev=found.rev,
        flags=found.flags,
        expiry=found.expiry,
        datatype=int(found.datatype),
        vbucket=found.vbucket,
    )


@click.command("set")
@source_argument
@click.argument("key")
@click.argument("value", required=False)
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="The value is in this file; - is stdin.",
)
@click.option("--expiry", type=click.IntRange(0, _MAX_EXPIRY), default=0, help=_EXPIRY_HELP)
@click.option("--flags", type=click.IntRange(0, 2**32 - 1), default=0, help="The client's flags.")
@click.option("--cas", type=click.IntRange(0), default=0, help="Only over this version.")
@_options
def set_document(
    source: str,
    key: str,
    value: str | None,
    file: Path | None,
    expiry: int,
    flags: int,
    cas: int,
    collection: str,
    access: Access,
    timeout: float,
    as_json: bool,
) -> None:
    """Write the document KEY, whatever was there; VALUE is text, or comes from --file.

    \b
    Examples:
      upriver set couchbase://localhost/default order::17 '{"total": 10}'
      upriver set couchbase://localhost/shop 17 --collection sales.orders --file order.json
    """
    if (value is None) == (file is None):
        raise click.UsageError("give the document as VALUE or with --file, one of the two")
    content = _read(file) if file is not None else (value or "").encode()
    with _documents(source, access, timeout) as documents, interruptible(_in_doubt):
        written = documents.set(
            key.encode(),
            content,
            collection=collection,
            expiry=expiry,
            flags=flags,
            json=is_json(content),
            cas=cas,
        )
    _show("written", key, written, as_json=as_json)


@click.command()
@source_argument
@click.argument("key")
@click.option("--cas", type=click.IntRange(0), default=0, help="Only this version.")
@_options
def delete(
    source: str, key: str, cas: int, collection: str, access: Access, timeout: float, as_json: bool
) -> None:
    """Delete the document KEY.

    Exits with 1 if there is none.
    """
    with _documents(source, access, timeout) as documents, interruptible(_in_doubt):
        written = documents.delete(key.encode(), collection=collection, cas=cas)
    if written is None:
        raise _NoDocument(key, collection)
    _show("deleted", key, written, as_json=as_json)


@click.command()
@source_argument
@click.argument("key")
@click.argument("expiry", type=click.IntRange(0, _MAX_EXPIRY))
@_options
def touch(
    source: str,
    key: str,
    expiry: int,
    collection: str,
    access: Access,
    timeout: float,
    as_json: bool,
) -> None:
    """Give the document KEY another EXPIRY.

    EXPIRY is in seconds from now up to 30 days, or in seconds since 1970; 0 is never.

    Exits with 1 if there is no such document.
    """
    with _documents(source, access, timeout) as documents, interruptible(_in_doubt):
        written = documents.touch(key.encode(), expiry, collection=collection)
    if written is None:
        raise _NoDocument(key, collection)
    _show("touched", key, written, as_json=as_json)


def _documents(source: str, access: Access, timeout: float) -> Documents:
    # Imported here: help and completion need none of it.
    from ...consumer.transport.connection_string import Source
    from ...consumer.writing.documents import Documents

    return Documents(Source.parse(source), access, timeout=timeout)


def _in_doubt() -> str:
    return "the server may have done it; see upriver get"


def _read(file: Path) -> bytes:
    with click.open_file(str(file), "rb") as opened:
        content: bytes = opened.read(MAX_VALUE + 1)
    return content


def _shown_value(value: bytes) -> tuple[Any, str]:
    """A value as a member of a JSON object, and in which form, named as `upriver tail` does."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode(), "base64"
    try:
        return json.loads(text), "json"
    except (ValueError, RecursionError):
        return text, "text"


def _show(done: str, key: str, written: Written, *, as_json: bool) -> None:
    if as_json:
        _print_json(key=key, result=done, cas=written.cas, vbucket=written.vbucket)
    else:
        click.echo(f"{done}: {key} (CAS {written.cas}, vbucket {written.vbucket})")


def _print_json(**members: Any) -> None:
    click.echo(json.dumps(members, ensure_ascii=False))
