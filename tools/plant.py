"""Plants small faults in our own code and counts the worlds that it takes to find each.

A simulation that cannot fail shows nothing. Each fault replaces a few characters of one module, in
a process of its own; the files stay as they are. ``make plant`` prints the table of
docs/explanation/guarantees.md, and fails if a fault is not found that was found before.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
#: Worlds that are tried for one fault, by scope.
MOST_SEEDS = {"single": 250, "cluster": 120, "table": 120}


class Fault(NamedTuple):
    """A change of one module. ``old`` occurs in it exactly once."""

    what: str
    module: str
    old: str
    new: str
    scope: str = "single"
    #: A second place, where a check that does the same is left out too: module, old and new.
    also: tuple[str, str, str] | None = None


#: Faults that the worlds do not find yet; that is told, and is no failure.
NOT_FOUND_YET = frozenset(
    {
        "a rollback goes into the middle of a snapshot",
        "a boundary is kept in the middle of a snapshot",
        "a rewound position keeps its newest branch",
        "a checkpoint loses its snapshot",
        "the window of a slow reader is ignored",
        "a connection that was lost is kept",
        "a boundary of a table is kept too long",
        "compaction commits over a batch",
        "what a commit says of other tables is not done after a crash",
        "the driver never notices a failover",
        "the driver believes histories of another moment",
    }
)

FAULTS = (
    Fault(
        "a commit is not synced",
        "upriver.store.bucket_core",
        "self.engine.write(group.batch, sync=self._sync)",
        "self.engine.write(group.batch, sync=False)",
    ),
    Fault(
        "no new branch after a power failure without syncs",
        "upriver.store.bucket_core",
        "if salvage or (not clean and durability is SyncMode.RELAXED):",
        "if salvage:",
    ),
    Fault(
        "writes go on after a failed write",
        "upriver.store.bucket_core",
        "            if self._failure is not None:\n                self._recover(self._failure)\n"
        "            with",
        "            with",
    ),
    Fault(
        "files are opened again and not read",
        "upriver.store.bucket_core",
        "            known.standing, known.progress = found.standing, found.progress\n",
        "",
    ),
    Fault(
        "a failed write is denied",
        "upriver.store.bucket_core",
        "error.is_ambiguous = True",
        "error.is_ambiguous = False",
    ),
    Fault(
        "commits are not told to streams",
        "upriver.store.bucket_core",
        "            self._notify({vbucket: progress.high for vbucket, progress in "
        "group.progress.items()})",
        "            pass",
    ),
    Fault(
        "a rollback begins no branch",
        "upriver.store.rollback",
        "failover.branch(new_vbuuid(), seqno)",
        "failover",
    ),
    Fault(
        "a rollback forgets what it should restore",
        "upriver.store.rollback",
        "        group.restore(vbucket, progress, path, version)",
        "        pass",
    ),
    Fault(
        "a rollback goes one too far",
        "upriver.store.rollback",
        "    progress.high = seqno\n",
        "    progress.high = seqno + 1\n",
    ),
    Fault(
        "a rollback looks one version back only",
        "upriver.store.rollback",
        "                if canonical.seqno_of(version) > seqno:\n                    "
        "newer.append(version)\n                else:",
        "                if True:",
    ),
    Fault(
        "the CAS is not checked",
        "upriver.store.writes.operations",
        "    check_cas(change.cas, live, change.key)\n    return _store",
        "    return _store",
    ),
    Fault(
        "an Add overwrites",
        "upriver.store.writes.operations",
        '        raise StoreRefusal(Status.EXISTS, f"there is a document {key_name(change.key)}")\n'
        "    return _store",
        "        pass\n    return _store",
    ),
    Fault(
        "a counter counts twice",
        "upriver.store.writes.operations",
        "number = int(digits) + change.delta",
        "number = int(digits) + 2 * change.delta",
    ),
    Fault(
        "a prepend appends",
        "upriver.store.writes.operations",
        "lambda body: change.value + body",
        "lambda body: body + change.value",
    ),
    Fault(
        "a deletion is told and not made",
        "upriver.store.writes.operations",
        "progress, path, change.key, live, RecordKind.DELETION\n",
        "progress, path + b'x', change.key + b'x', None, RecordKind.DELETION\n",
    ),
    Fault(
        "a write is acknowledged before its commit",
        "upriver.producer.connections.deferred_responses",
        "            future = bucket.submit([change for change, _ in writes])",
        "            future = bucket.submit([change for change, _ in writes])\n"
        "            from concurrent.futures import Future as _F\n"
        "            early = _F()\n"
        "            early.set_result([__import__('upriver.store', fromlist=['Applied'])"
        ".Applied(c.vbucket, 1, 1) for c, _ in writes])\n"
        "            future = early",
    ),
    Fault(
        "the end of a branch is off by one",
        "upriver.model",
        "    if snap_end <= upper:\n        return None\n    if start == snap_end:",
        "    if snap_end <= upper + 1:\n        return None\n    if start == snap_end:",
    ),
    Fault(
        "a rollback goes into the middle of a snapshot",
        "upriver.model",
        "    return min(upper, snap_start)",
        "    return upper",
    ),
    Fault(
        "purged deletions are not noticed",
        "upriver.model",
        "purged_past = start != 0 and start < purge_seqno",
        "purged_past = False",
    ),
    Fault(
        "a marker is too short",
        "upriver.session.stream_output",
        "                end=end,\n",
        "                end=max(start, end - 1),\n",
    ),
    Fault(
        "deletions are left out of a stream",
        "upriver.session.stream_output",
        "        Part.DELETIONS: True,",
        "        Part.DELETIONS: False,",
    ),
    Fault(
        "a boundary is kept in the middle of a snapshot",
        "upriver.session.stream_position",
        "        if seqno == self._snapshot.end:\n            self._remember(seqno)",
        "        self._remember(seqno)",
    ),
    Fault(
        "a boundary is kept too long",
        "upriver.session.stream_position",
        "        index = bisect_right(self.boundaries, seqno)\n"
        "        return self.boundaries[index - 1] if index else min(self.origin, seqno)",
        "        return self.boundaries[-1] if self.boundaries else 0",
    ),
    Fault(
        "a rewound position keeps its newest branch",
        "upriver.session.rollback_point",
        "            point = position.boundary_at_most(shared)\n"
        "            return _at(position, point, entry.vbuuid), RollbackReason.DIVERGED",
        "            return _renamed(position, entry.vbuuid), None",
    ),
    Fault(
        "the branch of a new stream is not followed",
        "upriver.session.stream_position",
        "            self.log, self.vbuuid = log, log.newest.vbuuid",
        "            self.log = log",
    ),
    Fault(
        "a rollback is not told to the application",
        "upriver.consumer.streaming.event_dispatch",
        "        else:\n            self._deliver(Delivery(event))\n\n    def finished",
        "\n    def finished",
    ),
    Fault(
        "a lost connection keeps the position from before",
        "upriver.consumer.streaming.event_dispatch",
        "            reader.position = session.position(reader.vbucket)\n"
        "            if reader.leave(",
        "            if reader.leave(",
    ),
    Fault(
        "a lost connection is not opened again",
        "upriver.consumer.streaming.event_dispatch",
        "            reader.not_before = now + pause\n        self._warn(",
        "            reader.not_before = now + 1e9\n        self._warn(",
    ),
    Fault(
        "a position is ahead of what was handed out",
        "upriver.consumer.streaming.inbox",
        "            tracker.advanced(step.seqno)\n",
        "            tracker.advanced(max(step.seqno, step.snapshot.end))\n",
    ),
    Fault(
        "finished bytes are not given back",
        "upriver.consumer.transport.async_connection",
        "        self._window.consumed(counted)\n        self._acknowledge()",
        "        self._acknowledge()",
    ),
    Fault(
        "a silent node is never left",
        "upriver.session.keepalive",
        "        return now >= self._heard_at + 2 * self.interval",
        "        return False",
    ),
    Fault(
        "the window of a slow reader is ignored",
        "upriver.producer.dcp.active_stream",
        "        window.sent(cut)\n",
        "",
    ),
    Fault(
        "a connection that was lost is kept",
        "upriver.producer.server",
        "        self._connections.pop(connection, None)\n",
        "",
    ),
    Fault(
        "a checkpoint loses its snapshot",
        "upriver.consumer.checkpoints.position_json",
        '"snapshot": [offset.snapshot.start, offset.snapshot.end],',
        '"snapshot": [offset.seqno, offset.seqno],',
    ),
    Fault(
        "a node without a lease answers writes",
        "upriver.producer.write_lease",
        "        held = self._now() < self._until\n",
        "        held = True\n",
        "cluster",
    ),
    Fault(
        "a failover waits for no lease",
        "upriver.cluster.manager_commands",
        "            if not seconds:\n                return\n",
        "            return\n",
        "cluster",
    ),
    Fault(
        "a durable write is committed without its copies",
        "upriver.producer.keyvalue.durability_requirements",
        "        return count >= self.needed and (",
        "        return True and (",
        "cluster",
    ),
    Fault(
        "a replica acknowledges what it has not",
        "upriver.producer.dcp.dcp_consumer",
        "opaque=stream.opaque, prepared_seqno=seqno)",
        "opaque=stream.opaque, prepared_seqno=2**40)",
        "cluster",
    ),
    Fault(
        "the worse copy is made active",
        "upriver.cluster.best_copy",
        "        return CopyStanding.MORE if one.seqno > other.seqno else CopyStanding.LESS",
        "        return CopyStanding.LESS if one.seqno > other.seqno else CopyStanding.MORE",
        "cluster",
    ),
    Fault(
        "a promoted replica begins no branch",
        "upriver.store.vbucket_state_changes",
        "            if not transfer:\n",
        "            if False:\n",
        "cluster",
    ),
    Fault(
        "prepares are committed twice after a failover",
        "upriver.producer.durability_monitor",
        '        if pending.maybe_committed:\n            return float("inf")\n',
        "        if pending.maybe_committed:\n            return 0.0\n",
        "cluster",
    ),
    Fault(
        "a copy is made active while the other nodes are silent",
        "upriver.cluster.reconcile",
        "    if missing and not (kept and set(missing) <= set(now.absent)):",
        "    if False:",
        "cluster",
    ),
    Fault(
        "replicas are not kept up to date",
        "upriver.cluster.replicator",
        "            self._there.add(vbucket)\n        elif",
        "            self._wanted = frozenset()\n        elif",
        "cluster",
    ),
    Fault(
        "a node keeps its lease for twice the time",
        "upriver.producer.write_lease",
        "self._length = int(member.lease * 1e9)",
        "self._length = int(member.lease * 2e9)",
        "cluster",
    ),
    Fault(
        "an answered question is not forgotten",
        "upriver.session.conversation",
        "            self._waiting.pop(pending.opaque, None)\n            pending.opaque = None",
        "            pending.opaque = None",
        "cluster",
    ),
    Fault(
        "a lease is not checked",
        "upriver.tables.lease",
        "        if newest > self.number:\n",
        "        if False:\n",
        "table",
        also=(
            "upriver.tables.pipeline_tables",
            "        if self.state.fence > fence:\n",
            "        if False:\n",
        ),
    ),
    Fault(
        "a lease that another driver holds is taken",
        "upriver.tables.lease",
        "    while number and not (is_given_back(holder) or is_dead(holder)):\n",
        "    while False:\n",
        "table",
    ),
    Fault(
        "a commit replaces another one",
        "upriver.tables.format.delta_log",
        "    if not storage.create(path, text):\n        return None\n",
        "    storage.put(path, text)\n",
        "table",
    ),
    Fault(
        "a conflict is not noticed",
        "upriver.tables.format.open_table",
        "        if done is None:\n            raise Conflict",
        "        done = done or []\n        if False:\n            raise Conflict",
        "table",
    ),
    Fault(
        "a boundary of a table is kept too long",
        "upriver.tables.pipeline_tables",
        "                version = known.get(seqno, now if seqno == was.seqno else None)\n",
        "                version = known.get(seqno, now)\n",
        "table",
    ),
    Fault(
        "the end of a step has the version before it",
        "upriver.tables.pipeline_tables",
        "                if seqno == progress.seqno and progress != was:\n",
        "                if False:\n",
        "table",
    ),
    Fault(
        "what tasks saw above the ends of their steps is forgotten",
        "upriver.batches.offset_planning",
        "            end = Boundary(at.seqno, max(seen, before))\n",
        "            end = Boundary(at.seqno, at.seqno)\n",
        "table",
    ),
    Fault(
        "a restored vbucket keeps its present rows",
        "upriver.tables.merge",
        "        self._add_rolled_back(done.gone)\n",
        "",
        "table",
    ),
    Fault(
        "a rolled back vbucket is not restored",
        "upriver.tables.merge",
        "                    files_of(table).add(rows)\n            except",
        "                    pass\n            except",
        "table",
    ),
    Fault(
        "a deletion vector forgets the one before",
        "upriver.tables.format.open_table",
        "                found[name] = before | named, fresh\n",
        "                found[name] = named, fresh\n",
        "table",
    ),
    Fault(
        "a deletion vector is of another file",
        "upriver.tables.format.open_table",
        "        for name, (rows, _) in self.new_rows_gone(gone).items():\n"
        "            file = self.snapshot.files[name]\n"
        "            actions.append(file.remove_action())\n",
        "        for name, (rows, _) in self.new_rows_gone(gone).items():\n"
        "            name = next(iter(self.snapshot.files))\n"
        "            file = self.snapshot.files[name]\n"
        "            actions.append(file.remove_action())\n",
        "table",
    ),
    Fault(
        "a key index lacks its last row",
        "upriver.tables.format.data_files",
        "KeyIndex.build(self._hashes[0].take(numbers[alive]), np.flatnonzero(alive))",
        "KeyIndex.build(self._hashes[0].take(numbers[alive][:-1]), np.flatnonzero(alive)[:-1])",
        "table",
    ),
    Fault(
        "a row in the same batch is not replaced",
        "upriver.tables.format.data_files",
        "        new.dead = np.flatnonzero(~alive).astype(np.uint32)\n",
        "",
        "table",
    ),
    Fault(
        "compaction takes dead rows along",
        "upriver.tables.format.data_files",
        "    gone = rows_of(read_vector(storage, file.vector)).astype(np.int64)\n    if but",
        "    gone = np.empty(0, np.int64)\n    if but",
        "table",
    ),
    Fault(
        "compaction commits over a batch",
        "upriver.tables.upkeep.table_maintenance",
        "                except Conflict:\n                    table.refresh()\n"
        "                    continue\n                size =",
        "                except Conflict:\n                    table.refresh()\n"
        "                    self._exchange(name, table, done)\n                size =",
        "table",
    ),
    Fault(
        "vacuum forgets the vectors",
        "upriver.tables.upkeep.version_retention",
        "        found.update(file.paths)\n",
        "        found.add(file.path)\n",
        "table",
    ),
    Fault(
        "vacuum keeps the newest version only",
        "upriver.tables.upkeep.version_retention",
        "            needed |= set(commit.named) if version > oldest else set()\n",
        "",
        "table",
    ),
    Fault(
        "vacuum leaves orphans",
        "upriver.tables.upkeep.version_retention",
        "            and (file.path in once_named or file.modified < late)\n",
        "            and file.path in once_named\n",
        "table",
    ),
    Fault(
        "a checkpoint of the log lacks a file",
        "upriver.tables.format.delta_log",
        "        snapshot.actions(),\n",
        "        list(snapshot.actions())[:-1],\n",
        "table",
    ),
    Fault(
        "what a commit says of other tables is not done after a crash",
        "upriver.tables.pipeline",
        "        self._tables.apply_pending()\n        target:",
        "        target:",
        "table",
    ),
    Fault(
        "what a commit says of other tables is done twice",
        "upriver.tables.pipeline_tables",
        "            if table.snapshot.transactions.get(self.app, 0) >= self.state.batch:\n"
        "                continue\n",
        "",
        "table",
    ),
    Fault(
        "the driver never notices a failover",
        "upriver.batches.stream_driver",
        "            if len((at := previous.at(vb)).log) and at.vbuuid == log.newest.vbuuid\n",
        "            if len((at := previous.at(vb)).log)\n",
        "table",
    ),
    Fault(
        "the driver believes histories of another moment",
        "upriver.batches.stream_driver",
        "                if sight is not None and sight.vbuuid == log.newest.vbuuid:\n",
        "                if sight is not None:\n",
        "table",
    ),
    Fault(
        "the driver overlooks what was purged",
        "upriver.batches.stream_driver",
        "            elif start < purged:\n",
        "            elif False:\n",
        "table",
    ),
    Fault(
        "a task reads beyond its step",
        "upriver.batches.task_reader",
        "    return batch if within.all() else batch.filter(pa.array(within))\n",
        "    return batch\n",
        "table",
    ),
    Fault(
        "a plan keeps a boundary too long",
        "upriver.batches.offset_planning",
        "boundary for boundary in at.boundaries if boundary.bound <= shared)",
        "boundary for boundary in at.boundaries if boundary.seqno <= shared)",
        "table",
    ),
)


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with a fault in it."""

    def __init__(self, what: str, module: str, old: str, new: str) -> None:
        self._module = module
        self._path = SOURCE / (module.replace(".", "/") + ".py")
        text = self._path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{what}: {text.count(old)} places in {module}")
        self._text = text.replace(old, new)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


def planted(fault: Fault) -> list[_Planted]:
    """What loads the modules of a fault; SystemExit if its places are not there any more."""
    places = ((fault.module, fault.old, fault.new), fault.also)
    return [_Planted(fault.what, *place) for place in places if place is not None]


def seek(number: int) -> None:
    """Runs worlds with one fault until it is found; prints how many it took and what told of it."""
    fault = FAULTS[number]
    sys.meta_path[:0] = planted(fault)
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from worlds import SCOPES, Plan, run

    for seed in range(MOST_SEEDS[fault.scope]):
        violation = run(Plan.of(seed, SCOPES[fault.scope])).violation
        if violation is not None:
            print(json.dumps([seed + 1, violation.rule]))
            return
    print(json.dumps([0, ""]))


def found(number: int) -> tuple[int, str]:
    told = subprocess.run(
        [sys.executable, __file__, "--one", str(number)], capture_output=True, text=True
    )
    if told.returncode:
        raise SystemExit(told.stderr[-2000:])
    seeds, rule = json.loads(told.stdout.splitlines()[-1])
    print(f"{FAULTS[number].what}: {seeds or 'not found'}", file=sys.stderr, flush=True)
    return seeds, rule


def main() -> int:
    parser = argparse.ArgumentParser(description="planted faults")
    parser.add_argument("--one", type=int, help="the number of a fault, in a process of its own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--scope", choices=list(MOST_SEEDS), help="only faults of this scope")
    chosen = parser.parse_args()
    if chosen.one is not None:
        seek(chosen.one)
        return 0
    count = missed = 0
    print("| planted fault | module | worlds | what told of it |")
    print("|---|---|---|---|")
    numbers = [n for n, fault in enumerate(FAULTS) if chosen.scope in (None, fault.scope)]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for number, (seeds, rule) in zip(numbers, pool.map(found, numbers), strict=True):
            fault = FAULTS[number]
            module = fault.module.removeprefix("upriver.")
            print(f"| {fault.what} | `{module}` | {seeds or 'not found'} | {rule} |", flush=True)
            count += bool(seeds)
            missed += not seeds and fault.what not in NOT_FOUND_YET
    print(f"\n{count} of {len(numbers)} found", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
