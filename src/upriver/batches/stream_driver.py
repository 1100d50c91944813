"""What the driver of a streaming query does: looks at the bucket and plans the next batch.

It holds connections and follows the rules of `offset_planning`. It reads no changes, but for a few
to learn how large they are. Spark is not known here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..consumer.checkpoints.position_check import probe_and_wait
from ..consumer.consumer_settings import RollbackPolicy
from ..consumer.topology.collection_names import Collections
from ..consumer.topology.questions import VBucketSeqnos
from ..consumer.topology.seqno_survey import Survey
from ..consumer.transport.connection_string import Address
from ..errors import UpriverError
from ..model import FailoverLog
from ..session.stream_position import Position
from .admission import Limits
from .bucket_survey import BucketSurvey
from .offset_planning import (
    ObservedVBucket,
    from_beginning,
    from_latest,
    from_positions,
    plan,
    with_closed_ends,
    with_rereads,
)
from .offset_ranges import SMALL_BATCH, newest_step
from .offsets import Offset, SourceIdentity, VBucketProgress
from .options import ReadOptions
from .read_ahead import ArrivedChanges, ReadAhead
from .row_size import RowSize
from .source_access import reading_settings
from .streamed_survey import StreamedSurvey

_log = logging.getLogger(__name__)

#: Seconds between two looks: at the least, and at the most after nothing has happened for a while.
_POLL: Final = 0.02
_IDLE_POLL: Final = 0.2
#: The part of the time since the last change that is waited until the next look.
_POLL_PART: Final = 0.1
#: Seconds within which every vbucket that seems to stand still is looked at: after a failover one
#: can come to the very seqno that it had before.
_SWEEP: Final = 5.0
#: Seconds to wait for changes that the nodes have and that have not arrived on open streams.
_LATE: Final = 0.25
#: Seconds without changes after which the ends of the last batches become boundaries.
_QUIET: Final = 5.0
#: How often a history is asked for again while it changes under our eyes.
_MOST_LOOKS: Final = 20
#: Seconds after which a vbucket that cannot be planned is worth a warning.
_UNKNOWN_SECONDS: Final = 10.0


class Driver:
    """Plans batches of one source.

    ``patience`` is for how many seconds a look waits for vbuckets that no node serves, while there
    are others; by default as long as for a node. If it ``reads_ahead``, small batches have their
    changes with them (`arrived`).
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        patience: float = float("inf"),
        reads_ahead: bool = False,
    ) -> None:
        self._options = options
        self._ahead: ReadAhead | None = None
        if reads_ahead and options.read_ahead and (options.min_partitions or 1) == 1:
            settings = reading_settings(options, rollback=RollbackPolicy.STOP)
            self._ahead = ReadAhead(settings, options.read_ahead)
        #: The offset that was planned last, with the changes that lead there.
        self._arrived: tuple[Offset, ArrivedChanges] | None = None
        retrying = options.retry_timeout
        self._asked = BucketSurvey(options, partial_after=min(patience, retrying))
        #: Vbuckets that cannot be planned, as no node answers for them, and since when.
        self._unknown: dict[int, float] = {}
        #: Up to when the vbuckets that stand still were looked at, and which of them is the next.
        self._swept_at = time.monotonic()
        self._next_swept = 0
        #: Vbuckets whose newest step is known not to have been refused: only a look at what was
        #: purged since it was read shows it, and after that nothing can refuse that step any more.
        self._proved: set[int] = set()
        #: When a plan had something new the last time.
        self._moved_at = time.monotonic()
        self._looked_at = 0.0
        self._row_size = RowSize()
        #: How far the bucket was at the last look.
        self.highs: dict[int, int] = {}

    def close(self) -> None:
        self._asked.close()
        if self._ahead is not None:
            self._ahead.close()

    def interrupt(self) -> None:
        """Ends what waits for a node in another thread, with `Interrupted`."""
        self._asked.interrupt()

    @property
    def _survey(self) -> Survey | StreamedSurvey:
        return self._asked.found

    def identity(self) -> SourceIdentity:
        """Which history of changes this is."""
        found = self._survey.map()
        return SourceIdentity(found.bucket, found.bucket_uuid, len(found.vbuckets))

    def nodes(self) -> int:
        return len(self._survey.map().nodes)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The nodes of the newest map."""
        return tuple(self._survey.nodes)

    @property
    def waits(self) -> tuple[float, str] | None:
        """Since when no node answers, in seconds since 1970, and why; None while nodes do."""
        return self._asked.waits

    def reading(self, options: ReadOptions | None = None) -> ReadOptions:
        """Options for whoever reads what is planned here: with what is known of the server."""
        return self._asked.applied_to(options or self._options).knowing(self._survey.nodes)

    def narrow(self, options: ReadOptions) -> None:
        """Looks at less from now on."""
        self._options = options

    def choose(self, options: ReadOptions) -> None:
        """Looks at other collections from now on."""
        self._options = options
        self._survey.choose(options.collections, options.scope)
        self._proved.clear()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def collections(self) -> Collections:
        """The names of scopes and collections, asked of a node now."""
        return self._survey.collections()

    def high_seqnos_of(self, options: ReadOptions) -> dict[int, int]:
        """The high seqnos of some collections, which must not stay chosen."""
        before = self._options
        self._survey.choose(options.collections, options.scope)
        try:
            return self._survey.high_seqnos()
        finally:
            self._survey.choose(before.collections, before.scope)

    def look(self) -> dict[int, VBucketSeqnos]:
        """Every vbucket that is wanted, as it is now."""
        wanted = self._wanted(range(self.identity().vbuckets))
        return self._survey.look(wanted)

    # ---- offsets -------------------------------------------------------------------------

    def offset_of(self, stored: object) -> Offset | None:
        """The offset that Spark gives back; None if nothing was decided yet."""
        return Offset.of_dict(stored, self.identity())

    def first_offset(self) -> Offset:
        """Where a new query begins."""
        source, starting = self.identity(), self._options.starting
        if starting == "earliest":
            return from_beginning(source)
        if starting == "latest":
            found = self._with_logs(self._survey.look())
            return from_latest(
                source,
                {vb: ObservedVBucket(sight.high_seqno, log) for vb, (sight, log) in found.items()},
                self._asked.applied_to(self._options).vbuckets if self._asked.mute else None,
            )
        starting.require_same_bucket(
            bucket=source.bucket, bucket_uuid=source.bucket_uuid, vbuckets=source.vbuckets
        )
        return from_positions(source, starting.positions)

    def next_offset(
        self,
        previous: Offset,
        limits: Limits,
        *,
        patience: float = 0.0,
        can_restore: Callable[[int, int], bool] | None = None,
        closes_ends: bool = False,
    ) -> Offset:
        """Where the next batch ends; equal to ``previous`` if nothing happens for a while.

        A table that holds current rows says which vbuckets it ``can_restore`` to which seqnos. A
        vbucket that must go back to another place is read anew from 0, up to its high seqno. Who
        cannot say what tasks saw gets an offset without steps when it is quiet, if it
        ``closes_ends``.
        """
        self._asked.follow(previous)
        deadline = time.monotonic() + patience
        reads_ahead, waited = limits.target is None, False
        while True:
            ahead = self._ahead if reads_ahead and self._survey.is_tight else None
            facts_ahead = self._facts_ahead(previous, deadline) if ahead is not None else None
            if facts_ahead is None:
                self._rest(deadline)
            facts = self._facts(previous) if facts_ahead is None else facts_ahead
            if facts:
                if limits.bytes is not None:
                    waiting = {v: f.high_seqno - previous.at(v).seqno for v, f in facts.items()}
                    size = self._row_size.learn(self.reading(), waiting)
                    limits = Limits(limits.rows, limits.bytes, size, limits.target)
                planned = plan(previous, facts, limits)
                if can_restore is not None:
                    planned = with_rereads(previous, planned, facts, can_restore)
                self._proved |= {vb for vb, fact in facts.items() if not fact.refused}
                if planned is not previous:
                    self._moved_at = time.monotonic()
                    self._refuse_losses(previous, planned, facts)
                    if facts_ahead is not None and self._take_arrived(previous, planned):
                        return planned
                    self._arrived = None
                    if ahead is not None:
                        ahead.not_read_ahead()
                    self._proved -= {vb for vb in facts if _reads(planned.at(vb), previous.at(vb))}
                    return planned
            if time.monotonic() < deadline:
                continue
            # that nothing arrived is no answer: only the nodes know that there is nothing
            if facts_ahead is None or not self._is_behind(previous):
                return self._at_rest(previous, limits) if closes_ends else previous
            reads_ahead, waited, deadline = not waited, True, time.monotonic() + _LATE

    def _at_rest(self, previous: Offset, limits: Limits) -> Offset:
        """An offset without steps if there is nothing to read, for now or in this run."""
        is_quiet = time.monotonic() - self._moved_at >= _QUIET or limits.target is not None
        open_ends = [vb for vb in self._proved if (at := previous.at(vb)).start < at.seqno]
        if not (is_quiet and open_ends):
            return previous
        self.highs = self._survey.high_seqnos()
        served = [vb for vb in self._wanted(open_ends) if vb in self.highs]
        return with_closed_ends(previous, self._same_branch(previous, served))

    def _is_behind(self, reached: Offset) -> bool:
        """Whether a node has changes after an offset now."""
        self.highs = self._survey.high_seqnos()
        return self.standing(reached)["behind"] > 0

    def _take_arrived(self, previous: Offset, planned: Offset) -> bool:
        """Whether the changes of a plan have arrived, and are kept for its task."""
        assert self._ahead is not None
        changes = self._ahead.planned(previous, planned)
        if changes is not None:
            self._arrived = planned, changes
        return changes is not None

    def arrived(self, planned: Offset) -> ArrivedChanges | None:
        """The changes of the batch that was planned last, if they were read ahead."""
        if self._arrived is not None and self._arrived[0] is planned:
            return self._arrived[1]
        return None

    def _rest(self, deadline: float) -> None:
        """Waits until the next look is due: the longer nothing has happened, the later it is."""
        now = time.monotonic()
        pause = min(max(_POLL, _POLL_PART * (now - self._moved_at)), _IDLE_POLL)
        time.sleep(max(0.0, min(self._looked_at + pause, deadline) - now))
        self._looked_at = time.monotonic()

    def prove(self, vbuckets: Iterable[int]) -> None:
        """Vbuckets whose newest step is known to have been read to its end.

        Who knows that spares the driver a look at what was purged since.
        """
        self._proved.update(vbuckets)

    def target(self, after: Offset | None = None) -> dict[int, int]:
        """What "available now" means now, to a reader that has come so far."""
        if after is not None:
            self._asked.follow(after)
        highs = self._survey.high_seqnos()
        self.highs = {vb: highs[vb] for vb in self._wanted(highs)}
        return dict(self.highs)

    def standing(self, reached: Offset) -> dict[str, int]:
        """How far the bucket was at the last look, and how far behind that an offset is."""
        highs = {vb: self.highs[vb] for vb in self._wanted(self.highs)}
        return {
            "vbuckets": len(highs),
            "seqnos": sum(highs.values()),
            "behind": sum(max(0, high - reached.at(vb).seqno) for vb, high in highs.items()),
        }

    def newest_branches(self, vbuckets: Iterable[int]) -> dict[int, int]:
        """The branches that are served now, such as of a batch that is read again after a crash."""
        return self._survey.branches(list(vbuckets))

    # ---- facts ---------------------------------------------------------------------------

    def _wanted(self, vbuckets: Iterable[int]) -> list[int]:
        chosen = self._asked.applied_to(self._options).vbuckets
        return [vb for vb in vbuckets if chosen is None or vb in chosen]

    def _facts(self, previous: Offset) -> dict[int, ObservedVBucket]:
        """What is known of those vbuckets that may have something new."""
        self.highs = self._survey.high_seqnos()
        if self._ahead is not None:
            self._ahead.sampled(self.highs)
        vbuckets = self._wanted(self.highs)
        due = self._due(vbuckets)
        may_be_new = [
            vb
            for vb in vbuckets
            if self.highs[vb] != (at := previous.at(vb)).seqno
            or (len(at.log) and (vb not in self._proved or vb in due))
        ]
        facts = self._same_branch(previous, [vb for vb in may_be_new if vb in self._proved])
        others = [vb for vb in may_be_new if vb not in facts]
        if others:
            sights = self._survey.look(others)
            facts |= self._facts_of(previous, sights)
        unserved = [
            vb for vb in self._wanted(range(previous.source.vbuckets)) if vb not in self.highs
        ]
        self._warn_of(unserved + [vb for vb in others if vb not in facts and self.highs[vb]])
        return facts

    def _facts_ahead(self, previous: Offset, deadline: float) -> dict[int, ObservedVBucket] | None:
        """What streams that are open have brought; None if the nodes must be asked."""
        assert self._ahead is not None
        ahead, next_look = self._ahead, self._looked_at + _SWEEP
        if not ahead.is_open:
            if self._seems_small(previous):
                vbuckets = self._wanted(range(previous.source.vbuckets))
                ahead.open(self.reading(), previous, vbuckets, self.highs, self._failover_logs)
            return None
        is_due = time.monotonic() >= next_look
        if is_due:
            ahead.require_arrived()
        if is_due or ahead.wants_sample:
            self.highs = self._survey.high_seqnos()
            ahead.sampled(self.highs)
            self._looked_at = time.monotonic()
        facts = ahead.facts(previous, min(deadline, next_look) - time.monotonic())
        if facts is None:
            return None
        unproved = [vb for vb in facts if len(previous.at(vb).log) and vb not in self._proved]
        if unproved:
            sights = self._survey.look(unproved)
            looked = self._facts_of(previous, sights)
            if any(
                vb not in looked
                or looked[vb].refused
                or looked[vb].failover_log.newest.vbuuid != previous.at(vb).vbuuid
                for vb in unproved
            ):
                return None
        self.highs.update({vb: fact.high_seqno for vb, fact in facts.items()})
        return facts

    def _failover_logs(self, vbuckets: list[int]) -> Mapping[int, FailoverLog]:
        return self._survey.failover_logs(vbuckets)

    def _seems_small(self, previous: Offset) -> bool:
        """Whether what there was to read at the last look can be read ahead."""
        waiting = self.standing(previous)["behind"] if self.highs else SMALL_BATCH
        return waiting <= self._options.read_ahead

    def _warn_of(self, unknown: list[int]) -> None:
        """Says so, once, if vbuckets with changes cannot be read for a while."""
        now = time.monotonic()
        self._unknown = {vb: self._unknown.get(vb, now) for vb in unknown}
        late = [vb for vb, since in self._unknown.items() if now - since > _UNKNOWN_SECONDS]
        if late:
            _log.warning(
                "%d vbuckets cannot be read now, because no node answers for them or gives their "
                "failover logs; the first is vbucket %d",
                len(late),
                late[0],
            )
            self._unknown |= dict.fromkeys(late, float("inf"))

    def _due(self, vbuckets: list[int]) -> set[int]:
        """Those whose turn it is to be looked at, however still they stand."""
        now, count = time.monotonic(), len(vbuckets)
        turns = min(count, int((now - self._swept_at) / _SWEEP * count))
        if turns == 0:
            return set()
        self._swept_at = now if turns == count else self._swept_at + turns / count * _SWEEP
        first, self._next_swept = self._next_swept, (self._next_swept + turns) % count
        return {vbuckets[turn % count] for turn in range(first, first + turns)}

    def _same_branch(self, previous: Offset, vbuckets: list[int]) -> dict[int, ObservedVBucket]:
        """The facts of vbuckets that are still on their branch.

        Their seqnos were asked for before. Nothing else has to be known of them, and a history is
        a tenth of what statistics are.
        """
        return {
            vb: ObservedVBucket(self.highs[vb], at.log, is_bound=self._survey.is_tight)
            for vb, log in (self._survey.failover_logs(vbuckets) if vbuckets else {}).items()
            if len((at := previous.at(vb)).log) and at.vbuuid == log.newest.vbuuid
        }

    def _facts_of(
        self, previous: Offset, sights: dict[int, VBucketSeqnos]
    ) -> dict[int, ObservedVBucket]:
        facts: dict[int, ObservedVBucket] = {}
        unknown: dict[int, VBucketSeqnos] = {}
        refused = self._refused(previous, sights)
        is_bound = self._survey.is_tight
        for vbucket, sight in sights.items():
            at = previous.at(vbucket)
            if len(at.log) and at.vbuuid == sight.vbuuid:
                facts[vbucket] = ObservedVBucket(
                    sight.high_seqno,
                    at.log,
                    sight.purge_seqno or 0,
                    refused=vbucket in refused,
                    is_bound=is_bound,
                )
            elif not len(at.log) and not sight.high_seqno:
                continue  # there is nothing in it yet
            else:
                unknown[vbucket] = sight
        for vbucket, (sight, log) in self._with_logs(unknown).items():
            facts[vbucket] = ObservedVBucket(
                sight.high_seqno, log, sight.purge_seqno or 0, is_bound=is_bound
            )
        return facts

    def _refused(self, previous: Offset, sights: dict[int, VBucketSeqnos]) -> set[int]:
        """The vbuckets whose newest step began below what was purged since.

        The request itself is tried if the user may not see statistics, or if it names the purge
        seqno that the server has: a server that understands this grants the request.
        """
        refused: set[int] = set()
        untold: dict[int, Position] = {}
        for vbucket, sight in sights.items():
            at = previous.at(vbucket)
            start, purged = at.start, sight.purge_seqno
            if not start or at.vbuuid != sight.vbuuid:
                continue
            if purged is None or start < purged == at.purge_seqno:
                untold[vbucket] = newest_step(vbucket, at).position_on_branch
            elif start < purged:
                refused.add(vbucket)
        if untold:
            options = self.reading()
            settings = reading_settings(options)
            verdicts = probe_and_wait(options.source, options.access, settings, untold)
            refused |= {vb for vb, verdict in verdicts.items() if not verdict.accepted}
        return refused

    def _with_logs(
        self, sights: dict[int, VBucketSeqnos]
    ) -> dict[int, tuple[VBucketSeqnos, FailoverLog]]:
        """Seqnos with the histories that they belong to."""
        found: dict[int, tuple[VBucketSeqnos, FailoverLog]] = {}
        for _ in range(_MOST_LOOKS):
            if not sights:
                break
            logs = self._survey.failover_logs(list(sights))
            again = self._survey.look(list(logs)) if logs else {}
            for vbucket, log in logs.items():
                sight = again.get(vbucket)
                if sight is not None and sight.vbuuid == log.newest.vbuuid:
                    found[vbucket] = sight, log
            sights = {vb: sight for vb, sight in sights.items() if vb in logs and vb not in found}
        return found

    def _refuse_losses(
        self, previous: Offset, planned: Offset, facts: dict[int, ObservedVBucket]
    ) -> None:
        """Fails where the user would rather hear of a rollback than see its row.

        The tokens in capitals survive Spark, which keeps only the text of an error.
        """
        for vbucket, progress in planned.progress.items():
            if not progress.rolled_back or progress == previous.at(vbucket):
                continue
            to = progress.start
            if self._options.fail_on_rollback:
                raise UpriverError(
                    f"DCP-ROLLBACK vb={vbucket} from={previous.at(vbucket).seqno} to={to}: the "
                    "server's history has changed; with onRollback=emit a row would say so"
                )
            known = {entry.vbuuid for entry in facts[vbucket].failover_log}
            lost = facts[vbucket].refused or previous.at(vbucket).vbuuid not in known
            if self._options.fail_on_data_loss and lost and to == 0:
                why = "was purged" if facts[vbucket].refused else "is of an unknown branch"
                raise UpriverError(
                    f"DCP-DATA-LOSS vb={vbucket} from={previous.at(vbucket).seqno}: what follows "
                    f"{why}; with failOnDataLoss=false the vbucket would be read again from 0"
                )


def _reads(step: VBucketProgress, before: VBucketProgress) -> bool:
    """Whether a step is a new one, and asks a producer for anything."""
    return step != before and step.start < step.seqno
