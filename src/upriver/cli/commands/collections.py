"""``upriver collections``: the scopes and collections of a bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ...errors import ConfigError
from ..setting_options import access_options, json_option, source_argument
from ..suggestions import SuggestingGroup

if TYPE_CHECKING:
    from ...consumer.transport.access import Access


@click.group(cls=SuggestingGroup)
def collections() -> None:
    """List, create and drop scopes and collections.

    \b
    Examples:
      upriver collections list couchbase://localhost/default
      upriver collections create couchbase://localhost/default sales.orders
      upriver collections drop couchbase://localhost/default sales.orders
    """


@collections.command("list")
@source_argument
@access_options
@json_option()
def list_collections(source: str, access: Access, timeout: float, as_json: bool) -> None:
    """List the collections of a bucket with their ids."""
    from ...consumer.transport.connection_string import Source
    from ...consumer.writing.documents import Documents

    with Documents(Source.parse(source), access, timeout=timeout) as documents:
        known = documents.collections
    found = sorted((*known.names(number), number) for number in known.collections)
    if as_json:
        rows = [{"scope": scope, "name": name, "id": number} for scope, name, number in found]
        click.echo(json.dumps({"manifest_uid": known.uid, "collections": rows}))
        return
    for scope, name, number in found:
        click.echo(f"{scope}.{name}  id {number:#x}")


@collections.command()
@source_argument
@click.argument("name", metavar="SCOPE.NAME")
@click.option("--max-expiry", type=click.IntRange(0), default=0, help="In seconds, for documents.")
@access_options
@json_option()
def create(
    source: str, name: str, max_expiry: int, access: Access, timeout: float, as_json: bool
) -> None:
    """Create the collection SCOPE.NAME, and its scope if there is none; SCOPE alone is a scope."""
    from ...consumer.transport.collection_manager import CollectionManager
    from ...consumer.transport.connection_string import Source
    from ...consumer.writing.documents import Documents

    scope, collection = _split(name)
    where = Source.parse(source)
    with Documents(where, access, timeout=timeout) as documents:
        is_new = scope not in documents.collections.scopes.values()  # as its manifest says now
    management = CollectionManager(where, access, timeout=timeout)
    if is_new or not collection:
        management.create_scope(scope)
    if collection:
        management.create_collection(scope, collection, max_expiry=max_expiry)
    _show("created", name, as_json=as_json)


@collections.command()
@source_argument
@click.argument("name", metavar="SCOPE.NAME")
@access_options
@json_option()
def drop(source: str, name: str, access: Access, timeout: float, as_json: bool) -> None:
    """Drop the collection SCOPE.NAME with its documents; SCOPE alone drops a whole scope."""
    from ...consumer.transport.collection_manager import CollectionManager
    from ...consumer.transport.connection_string import Source

    scope, collection = _split(name)
    management = CollectionManager(Source.parse(source), access, timeout=timeout)
    if collection:
        management.drop_collection(scope, collection)
    else:
        management.drop_scope(scope)
    _show("dropped", name, as_json=as_json)


def _show(done: str, name: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"name": name, "result": done}) if as_json else f"{done}: {name}")


def _split(name: str) -> tuple[str, str]:
    scope, dot, collection = name.partition(".")
    if not scope or (dot and not collection) or "." in collection:
        raise ConfigError(f"{name!r} is no collection; give SCOPE.NAME, or SCOPE for a scope")
    return scope, collection
