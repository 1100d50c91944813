"""Changes of a bucket's manifest: stored with their system events in every active vbucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import Status, StoreRefusal
from ..model import VBucketState
from .bucket_core import BucketCore
from .manifest import Manifest, events_between


def change_manifest(core: BucketCore, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Stores a new manifest, and its system events in every active vbucket, as one group."""
    with core.change() as group:
        group.manifest = change(group.manifest)
        _check_size(core, group.manifest)
        happened = list(events_between(core.manifest, group.manifest))
        for vbucket in core.vbuckets:
            if vbucket.standing.state is VBucketState.ACTIVE:
                for event in happened:
                    group.event(vbucket.id, event)
        return group.manifest


def replace_manifest(core: BucketCore, manifest: Manifest) -> None:
    """Replaces the manifest with one made elsewhere, which must have a higher uid."""

    def take(old: Manifest) -> Manifest:
        if manifest.uid <= old.uid:
            raise StoreRefusal(
                Status.RANGE, f"the manifest has uid {manifest.uid:#x}, ours {old.uid:#x}"
            )
        scopes = (scope.id for scope in manifest.scopes)
        collections = (collection.id for collection in manifest.collections)
        free = max(old.next_id, manifest.next_id, 1 + max((*scopes, *collections)))
        return replace(manifest, next_id=free)

    change_manifest(core, take)


def _check_size(core: BucketCore, manifest: Manifest) -> None:
    """Refuses a manifest that grew beyond the limits of the settings."""
    old, settings = core.manifest, core.settings
    for what, before, after, most in (
        ("collections", old.collections, manifest.collections, settings.max_collections),
        ("scopes", old.scopes, manifest.scopes, settings.max_scopes),
    ):
        if len(before) < len(after) and len(after) > most:
            raise StoreRefusal(
                Status.TOO_BIG, f"a bucket has up to {most} {what}, not {len(after)}"
            )
