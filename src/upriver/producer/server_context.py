"""Server context: buckets, users, cluster map and clock, shared by all connections.

It knows no sockets; the server gives it the address on which it listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import Status, StoreRefusal
from ..model import Datatype
from ..store import Bucket, Store
from ..wire import kv_messages as kv
from .bootstrap import cluster_config, sasl
from .bootstrap.users import Role, Users
from .connections.client_info import ClientInfo
from .keyvalue.durability_requirements import NO_COPIES, CopyNames, copy_names
from .server_settings import ServerSettings
from .write_lease import MANAGER, NodeLease

#: The version that clients receive. Several clients choose their commands by it, so it names the
#: Couchbase release whose commands are served.
VERSION: Final = "7.6.0-0000-upriver"
#: The name of a single server that has none.
_UNNAMED: Final = "upriver"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMap:
    """A cluster map that the manager sent. Without a bucket it is the map of the cluster."""

    bucket: str
    epoch: int
    rev: int
    config: bytes

    def message(self, *, json: bool, brief: bool = False) -> kv.ClustermapChanged:
        """Returns the notification that sends the map to a client; a brief one its version only."""
        return kv.ClustermapChanged(
            bucket=self.bucket,
            epoch=self.epoch,
            revision=self.rev,
            config=b"" if brief else self.config,
            datatype=Datatype.JSON if json and not brief else Datatype.RAW,
        )


class ServerContext:
    """The state of one node, except its documents."""

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
        #: Whether durable writes are supported. Without a cluster, a write on this node's disk is
        #: durable.
        self.durable_writes = True
        #: The node's membership, if it belongs to a cluster.
        self.membership = NodeLease(settings.member) if settings.member is not None else None
        #: Called when a manager with a newer epoch appears.
        self.epoch_raised: Callable[[int], None] = lambda epoch: None
        self._copies: dict[str, tuple[CopyNames, ...]] = {}
        #: The copies that Set VBucket named, by bucket and vbucket.
        self._topologies: dict[tuple[str, int], CopyNames] = {}
        #: Returns the statistics that only the server has.
        self.server_statistics: Callable[
            [ClientInfo, str, str], Iterable[tuple[str, str]] | None
        ] = lambda client, group, argument: None
        #: The bucket of clients that select none.
        self.main_bucket = default_bucket
        self._wall = wall
        self._address = cluster_config.NodeAddress(settings.host, settings.port)
        self._epoch = 1
        self._rev = 1
        #: The maps that the manager sent, by bucket.
        self._given: dict[str, GivenMap] = {}
        #: Called with every map that the manager sends.
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

    def may_flush(self, bucket: Bucket) -> bool:
        """Whether clients may flush a bucket."""
        return self.flush_allowed and bucket.settings.flush_enabled

    def default_bucket(self, client: ClientInfo) -> Bucket | None:
        """Returns the bucket of a client that selected none, as clients of the drafts cannot."""
        return (
            self.bucket(self.main_bucket)
            if self.users.roles(client.user, self.main_bucket)
            else None
        )

    def visible_buckets(self, client: ClientInfo) -> list[str]:
        """Returns the buckets in which a client has any role."""
        return [name for name in self.store.buckets() if self.users.roles(client.user, name)]

    # ---- authentication ------------------------------------------------------------------

    def mechanisms(self, client: ClientInfo) -> tuple[str, ...]:
        return sasl.mechanisms(tls=client.tls, plain_without_tls=self.settings.takes_plain)

    def exchange(self, client: ClientInfo) -> sasl.SaslExchange:
        return sasl.SaslExchange(
            self.users, tls=client.tls, plain_without_tls=self.settings.takes_plain
        )

    # ---- the cluster ---------------------------------------------------------------------

    @property
    def cluster_name(self) -> str:
        """The name of the cluster: of a single server, the one that an administrator gave it."""
        if self.membership is None:
            return self.store.name or _UNNAMED
        return self.membership.member.cluster

    @property
    def cluster_uuid(self) -> str:
        """What distinguishes the cluster, or a single server, from others."""
        return self.store.uuid if self.membership is None else self.membership.member.cluster

    @property
    def leased(self) -> bool:
        """Whether writes may be accepted. Always true for a server that is not in a cluster."""
        return self.membership is None or self.membership.leased

    def is_manager(self, client: ClientInfo) -> bool:
        """Whether a client has authenticated as the manager of this node's cluster."""
        return self.membership is not None and client.user == MANAGER and MANAGER in self.users

    def order_problem(self, client: ClientInfo) -> tuple[Status, str] | None:
        """Returns why a manager's command is refused; None if it is allowed.

        A server outside of a cluster accepts these commands from every administrator.
        """
        if self.membership is None:
            return None
        if not self.is_manager(client):
            return Status.NO_ACCESS, "only the manager of the cluster gives this order"
        if client.epoch < self.membership.epoch:
            return Status.EXISTS, (
                f"the order is of epoch {client.epoch}, and epoch {self.membership.epoch} has begun"
            )
        return None

    def renew_lease(self, client: ClientInfo, epoch: int, ticket: int) -> int:
        """Renews the lease for the manager; returns the next ticket."""
        assert self.membership is not None
        newer = epoch > self.membership.epoch
        client.epoch = epoch
        next_ticket = self.membership.renew(epoch, ticket)
        if newer:
            self.epoch_raised(epoch)
        return next_ticket

    # ---- the cluster map -----------------------------------------------------------------

    def listening(self, host: str, port: int, http_port: int | None = None) -> None:
        """Sets the address on which the server listens."""
        tls = self.settings.certificate is not None
        if self.settings.advertise is not None:
            host, port = self.settings.address(port)
        everywhere = host in ("0.0.0.0", "::")
        self._address = cluster_config.NodeAddress(
            "" if everywhere else host,
            None if tls else port,
            tls_port=port if tls else None,
            http_port=None if tls else http_port,
            https_port=http_port if tls else None,
            uuid=self.store.uuid,
        )
        self._raise_rev()

    def _raise_rev(self) -> None:
        # Taken from the clock: ports may differ after a restart, and clients ignore older
        # revisions.
        self._rev = max(self._rev + 1, int(self.now()))

    def own_maps(self) -> list[GivenMap]:
        """Returns new versions of the maps of a single server: the cluster's and each bucket's."""
        self._raise_rev()
        maps = [("", self.config(None))]
        maps += [(bucket.name, self.config(bucket)) for bucket in self.open_buckets()]
        return [
            GivenMap(bucket=name, epoch=self._epoch, rev=self._rev, config=config or b"")
            for name, config in maps
        ]

    @property
    def serves(self) -> bool:
        """Whether this node knows which vbuckets it has."""
        return self.membership is None or bool(self._given)

    def give_map(self, given: GivenMap) -> None:
        """Stores the map of a bucket, or of the cluster, that the manager sent."""
        known = self._given.get(given.bucket)
        if known is not None and (known.epoch, known.rev) > (given.epoch, given.rev):
            have = f"{known.epoch}.{known.rev}"
            raise StoreRefusal(Status.RANGE, f"the map here is newer: it is version {have}")
        self._given[given.bucket] = given
        self._copies[given.bucket] = copy_names(given.config)
        self.map_given(given)

    def copies(self, bucket: Bucket, vbucket: int) -> CopyNames | None:
        """Returns the other nodes that have a vbucket; None if they are not known."""
        if self.membership is None:
            return self._topologies.get((bucket.name, vbucket), NO_COPIES)
        known = self._copies.get(bucket.name, ())
        return known[vbucket] if 0 <= vbucket < len(known) else None

    def set_topology(self, bucket: Bucket, vbucket: int, copies: CopyNames | None) -> None:
        """Sets the copies that Set VBucket named. In a cluster, the map is used instead."""
        if copies is None:
            self._topologies.pop((bucket.name, vbucket), None)
        else:
            self._topologies[bucket.name, vbucket] = copies

    def may_acknowledge(self, client: ClientInfo, bucket: Bucket) -> bool:
        """Whether a client's seqno acknowledgements count. Any reader can claim to be a node."""
        if self.membership is not None:
            return self.is_manager(client)
        return Role.ADMINISTER in self.users.roles(client.user, bucket.name)

    def has_newer_config(self, bucket: Bucket | None, epoch: int, rev: int) -> bool:
        given = self._given.get(bucket.name if bucket else "")
        ours = (given.epoch, given.rev) if given else (self._epoch, self._rev)
        return ours > (epoch, rev)

    def config(self, bucket: Bucket | None) -> bytes | None:
        """Returns the map of a bucket, or of the cluster, as JSON; None while there is none."""
        given = self._given.get(bucket.name if bucket else "")
        if given is not None:
            return given.config
        if self.membership is not None:
            return None
        rows = ((0,),) * bucket.settings.vbuckets if bucket else ()
        cluster = cluster_config.ClusterConfig(
            rev=self._rev,
            epoch=self._epoch,
            nodes=(self._address,),
            this_node=0,
            rows=rows,
            cluster_name=self.cluster_name,
            cluster_uuid=self.cluster_uuid,
        )
        if bucket is None:
            return cluster_config.cluster_json(cluster)
        return cluster_config.bucket_json(
            cluster, bucket.name, manifest_uid=bucket.manifest.uid, uuid=bucket.uuid
        )

    def config_of(self, name: str) -> bytes | None:
        """Returns the map of a bucket by its name; None if there is no such bucket."""
        bucket = self.bucket(name)
        return self.config(bucket) if bucket else None

    def cluster_map(self, client: ClientInfo) -> bytes:
        return self.config(client.bucket) or b""

    # ---- for the key-value commands ------------------------------------------------------

    def statistics(
        self, client: ClientInfo, group: str, argument: str
    ) -> Iterable[tuple[str, str]] | None:
        return self.server_statistics(client, group, argument)

    def reset_statistics(self, client: ClientInfo) -> None:
        """Does nothing: the only counters are those of connections, and they are not reset."""

    def set_persistence(self, bucket: Bucket, *, running: bool) -> None:
        """For tests: stops or resumes reporting seqnos as persisted."""
        bucket.hold_persisted_seqnos(held=not running)
