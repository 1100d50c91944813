"""``upriver nodes``: the nodes of a cluster, and how many vbuckets each has."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from ..setting_options import access_options, json_option, source_argument

if TYPE_CHECKING:
    from ...consumer.transport.access import Access


@click.command()
@source_argument
@access_options
@json_option()
def nodes(source: str, access: Access, timeout: float, as_json: bool) -> None:
    """List the nodes of a bucket's cluster with the vbuckets that each has.

    \b
    Example:
      upriver nodes couchbase://localhost/default

    Exits with 1 if a vbucket has no active copy.
    """
    # Imported here: help and completion need none of it.
    from ...consumer.transport.connection_string import Source
    from ...consumer.writing.documents import Documents

    with Documents(Source.parse(source), access, timeout=timeout) as documents:
        known = documents.map
    active = Counter(row[0] for row in known.vbuckets)
    replicas = Counter(node for row in known.vbuckets for node in row[1:])
    found = [
        {
            "address": str(node.address),
            "active": active[index],
            "replica": replicas[index],
        }
        for index, node in enumerate(known.nodes)
    ]
    without = sum(count for index, count in active.items() if index < 0)
    if as_json:
        record = {
            "bucket": known.bucket,
            "revision": known.rev,
            "vbuckets": len(known.vbuckets),
            "without_active": without,
            "nodes": found,
        }
        click.echo(json.dumps(record))
    else:
        for node in found:
            click.echo(
                f"{node['address']}  {node['active']} active, {node['replica']} replica vbuckets"
            )
        if without:
            click.echo(f"{without} of {len(known.vbuckets)} vbuckets have no active copy")
    if without:
        raise SystemExit(1)
