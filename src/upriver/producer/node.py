"""What all connections of a server share: buckets, users, the map, and the clock.

It knows no socket; the server tells it where it listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import Status, StoreRefusal
from ..model import Datatype
from ..store import Bucket, Store
from ..wire import kv
from . import cluster_config, sasl
from .client import Client
from .durability import CopyNames, copy_names
from .settings import ServerSettings
from .users import Users

__all__ = ["VERSION", "GivenMap", "Node"]

#: What clients are told. Several decide by it what to ask for, so it names the release of
#: Couchbase whose commands are served.
VERSION: Final = "7.6.0-0000-upriver"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMap:
    """A map as a manager gave it. Without a bucket it is the cluster's."""

    bucket: str
    epoch: int
    rev: int
    config: bytes

    def message(self, *, json: bool) -> kv.ClustermapChanged:
        """What tells a client of it."""
        return kv.ClustermapChanged(
            bucket=self.bucket,
            epoch=self.epoch,
            revision=self.rev,
            config=self.config,
            datatype=Datatype.JSON if json else Datatype.RAW,
        )


class Node:
    """One node's state beside its documents."""

    def __init__(
        self,
        store: Store,
        settings: ServerSettings,
        *,
        default_bucket: str = "default",
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """``wall`` is the store's clock, in nanoseconds since 1970."""
        self.store = store
        self.settings = settings
        self.users = Users.load(settings.users) if settings.users else Users.unrestricted()
        self.version = VERSION
        self.flush_allowed = settings.flush_allowed
        #: Only in a cluster there are other copies to write to.
        self.durable_writes = settings.managed
        self._copies: dict[str, tuple[CopyNames, ...]] = {}
        #: Asked for the statistics that only the server has.
        self.server_statistics: Callable[[Client, str, str], Mapping[str, str] | None] = (
            lambda client, group, argument: None
        )
        self._default = default_bucket
        self._wall = wall
        self._address = cluster_config.NodeAddress(settings.host, settings.port)
        self._epoch = 1
        self._rev = 1
        #: What a manager said, by bucket.
        self._given: dict[str, GivenMap] = {}
        #: Told of every map that a manager gives.
        self.map_given: Callable[[GivenMap], None] = lambda given: None

    def now(self) -> float:
        return self._wall() / 1e9

    # ---- buckets -------------------------------------------------------------------------

    def bucket(self, name: str) -> Bucket | None:
        try:
            return self.store.bucket(name)
        except StoreRefusal:
            return None

    def open_buckets(self) -> list[Bucket]:
        return [bucket for name in self.store.buckets() if (bucket := self.bucket(name))]

    def default_bucket(self, client: Client) -> Bucket | None:
        """What a client works on that selected nothing, as clients of the drafts never do."""
        return self.bucket(self._default) if self.users.roles(client.user, self._default) else None

    def visible_buckets(self, client: Client) -> list[str]:
        """The buckets in which a client may do anything."""
        return [name for name in self.store.buckets() if self.users.roles(client.user, name)]

    # ---- who -----------------------------------------------------------------------------

    def mechanisms(self, client: Client) -> tuple[str, ...]:
        return sasl.mechanisms(tls=client.tls, plain_without_tls=self.settings.plain_without_tls)

    def exchange(self, client: Client) -> sasl.Exchange:
        return sasl.Exchange(
            self.users, tls=client.tls, plain_without_tls=self.settings.plain_without_tls
        )

    # ---- the map -------------------------------------------------------------------------

    def listening(self, host: str, port: int, http_port: int | None = None) -> None:
        """The server listens here now."""
        tls = self.settings.certificate is not None
        if self.settings.advertise is not None:
            host, port = self.settings.address(port)
        everywhere = host in ("0.0.0.0", "::")
        self._address = cluster_config.NodeAddress(
            "" if everywhere else host,
            None if tls else port,
            tls_port=port if tls else None,
            http_port=http_port,
        )
        self._rev += 1

    @property
    def serves(self) -> bool:
        """Whether it is known which vbuckets are this node's."""
        return not self.settings.managed or bool(self._given)

    def give_map(self, given: GivenMap) -> None:
        """Takes the map of a bucket, or of the cluster, that a manager made."""
        known = self._given.get(given.bucket)
        if known is not None and (known.epoch, known.rev) > (given.epoch, given.rev):
            have = f"{known.epoch}.{known.rev}"
            raise StoreRefusal(Status.RANGE, f"the map here is newer: it is version {have}")
        self._given[given.bucket] = given
        self._copies[given.bucket] = copy_names(given.config)
        self.map_given(given)

    def copies(self, bucket: Bucket, vbucket: int) -> CopyNames | None:
        """Which other nodes have a vbucket; None if that is not known."""
        known = self._copies.get(bucket.name, ())
        return known[vbucket] if 0 <= vbucket < len(known) else None

    def has_newer_config(self, bucket: Bucket | None, epoch: int, rev: int) -> bool:
        given = self._given.get(bucket.name if bucket else "")
        ours = (given.epoch, given.rev) if given else (self._epoch, self._rev)
        return ours > (epoch, rev)

    def config(self, bucket: Bucket | None) -> bytes | None:
        """The map of a bucket, or of the cluster alone, as JSON; None while there is none."""
        given = self._given.get(bucket.name if bucket else "")
        if given is not None:
            return given.config
        if self.settings.managed:
            return None
        rows = ((0,),) * bucket.settings.vbuckets if bucket else ()
        cluster = cluster_config.ClusterMap(
            rev=self._rev, epoch=self._epoch, nodes=(self._address,), this_node=0, rows=rows
        )
        if bucket is None:
            return cluster_config.cluster_json(cluster)
        return cluster_config.bucket_json(
            cluster, bucket.name, manifest_uid=bucket.manifest.uid, uuid=bucket.uuid
        )

    def config_of(self, name: str) -> bytes | None:
        """The map of a bucket by its name; None if there is no such bucket."""
        bucket = self.bucket(name)
        return self.config(bucket) if bucket else None

    def cluster_map(self, client: Client) -> bytes:
        return self.config(client.bucket) or b""

    # ---- for the key-value front end -----------------------------------------------------

    def statistics(self, client: Client, group: str, argument: str) -> Mapping[str, str] | None:
        return self.server_statistics(client, group, argument)

    def reset_statistics(self, client: Client) -> None:
        """There are no counters but those of connections, which begin with them."""

    def set_persistence(self, bucket: Bucket, *, running: bool) -> None:
        """For tests: has everything look as if it stayed in memory, or ends that."""
        bucket.hold_persisted_seqnos(held=not running)
