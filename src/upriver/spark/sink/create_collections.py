"""Creates the collections of a target that rows name, over its management interface."""

from __future__ import annotations

import time
from typing import Final

from ...batches.options import WriteOptions
from ...consumer.transport.collection_manager import CollectionManager
from ...consumer.writing.writer import Writer
from ...errors import ConfigError

#: Seconds for the nodes to hear of a new collection, and between two looks.
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.1


def created_collection(options: WriteOptions, opened: Writer, scope: str, collection: str) -> int:
    """The id of a collection, which is created if it is not there."""
    name = f"{scope}.{collection}"
    deadline = time.monotonic() + _PATIENCE
    tried = False
    while True:
        try:
            return opened.collections.id_of(name)
        except ConfigError:
            if time.monotonic() > deadline:
                raise
        if not tried:
            management = CollectionManager(options.source, options.access)
            management.ensure_collection(name, known_scopes=opened.collections.scopes.values())
            tried = True
        opened.renew()
        time.sleep(_PAUSE)
