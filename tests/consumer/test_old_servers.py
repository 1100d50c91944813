"""The consumer with servers of four ages: each question in the way that the server knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from consumerkit import LOG, Conversation, at, everything, in_order, places
from old_servers import April2014, RealServer, Release302, Release412, Release705
from waiting import until

from upriver.consumer import Consumer
from upriver.consumer.consumer_settings import RollbackPolicy
from upriver.consumer.streaming.inbox import Rollback
from upriver.consumer.topology.questions import NoHistory
from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    RollbackRequired,
    Status,
    StatusError,
)
from upriver.model import FailoverLog, Snapshot, StreamOffset, rollback_point
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import OpenFlag

OLD = [April2014, Release302, Release412]
ALL = [*OLD, Release705]
SOON: dict[str, Any] = {"map_interval": 0.05, "retry_first": 0.01, "retry_most": 0.1}


@pytest.mark.parametrize("release", ALL)
def test_everything_is_read_until_now(release: type[RealServer]) -> None:
    with release({0: 3, 1: 0, 2: 2}) as server:
        assert in_order(everything(server.source)) == {0: [1, 2, 3], 2: [1, 2]}


@pytest.mark.parametrize("release", ALL)
def test_a_reader_goes_on_where_it_was(release: type[RealServer]) -> None:
    with release({0: 5}) as server:
        assert places(everything(server.source, start={0: at(3)})) == [(0, 4), (0, 5)]


@pytest.mark.parametrize("release", ALL)
def test_a_reader_from_now_on_sees_only_what_comes(release: type[RealServer]) -> None:
    with release({0: 5, 1: 0}) as server, Consumer(server.source, start="now") as consumer:
        changes = iter(consumer)
        wait_for_stream(server, 0)
        server.write(0)
        assert next(changes).seqno == 6


def wait_for_stream(server: RealServer, vbucket: int) -> None:
    until(lambda: vbucket in server.streams)


@pytest.mark.parametrize("release", OLD)
def test_the_bucket_is_never_selected(release: type[RealServer]) -> None:
    with release() as server:
        everything(server.source)
        assert not server.asked_for(kv.SelectBucket)


@pytest.mark.parametrize("release", ALL)
def test_vbuckets_that_are_not_active_are_not_read(release: type[RealServer]) -> None:
    with release({0: 3, 1: 4}) as server:
        server.states[1] = "dead"
        chosen: dict[str, Any] = {"vbuckets": frozenset({0}), "end": "now"}
        assert places(everything(server.source, **chosen)) == [(0, 1), (0, 2), (0, 3)]


def test_only_the_server_of_april_2014_gets_the_short_request() -> None:
    for release, named in ((April2014, None), (Release302, 0), (Release412, 0)):
        with release({0: 1}) as server:
            everything(server.source)
            (request,) = server.asked_for(m.StreamRequest)
            assert request.snapshot_start == named


def test_a_backfill_of_april_2014_is_closed_by_its_marker() -> None:
    class Backfilling(April2014):
        backfills = True

    with Backfilling({0: 3}) as server, Consumer(server.source) as consumer:
        changes = iter(consumer)
        assert [next(changes).seqno for _ in range(3)] == [1, 2, 3]
        server.write(0, 2)
        assert [next(changes).seqno for _ in range(2)] == [4, 5]
        assert 3 in consumer.position().position(0).boundaries
        assert "connections lost" not in consumer.status().counts


def test_a_release_that_grants_nothing_is_known_by_its_version() -> None:
    class Stubborn(Release302):
        knows_control = False

    with Stubborn({0: 2}) as server:
        assert places(everything(server.source)) == [(0, 1), (0, 2)]
        (request,) = server.asked_for(m.StreamRequest)
        assert request.snapshot_start == 0


# ---- users -------------------------------------------------------------------------------


@pytest.mark.parametrize("release", OLD)
def test_a_user_signs_in_with_cram_md5(release: type[RealServer]) -> None:
    with release({0: 2}, user="default", password="secret") as server:
        access = Access(user="default", password="secret")
        assert places(everything(server.source, access=access)) == [(0, 1), (0, 2)]
        sent = [asked.payload for asked in server.asked_for(kv.SaslAuth | kv.SaslStep)]  # type: ignore[arg-type]
        assert sent
        assert all(b"secret" not in payload for payload in sent)


def test_plain_is_sent_without_tls_only_where_the_user_allows_it() -> None:
    class OnlyPlain(Release412):
        mechanisms = b"PLAIN"

    with OnlyPlain({0: 1}, user="u", password="p") as server:
        with pytest.raises(AuthenticationFailed, match="--allow-plain"):
            everything(server.source, access=Access(user="u", password="p"))
        assert not server.asked_for(kv.SaslAuth)
        access = Access(user="u", password="p", allow_plain=True)
        assert places(everything(server.source, access=access)) == [(0, 1)]


# ---- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [Release302, Release412, Release705])
def test_values_are_dropped_where_the_server_sends_them_all_the_same(
    release: type[RealServer],
) -> None:
    with release({0: 2}) as server:
        changes = everything(server.source, values=False)
        assert [(c.seqno, c.value, c.datatype) for c in changes] == [(1, b"", 0), (2, b"", 0)]
        assert any(flags & OpenFlag.NO_VALUE_WITH_DATATYPE for flags in server.opened.values())


# ---- rollbacks ---------------------------------------------------------------------------


@pytest.mark.parametrize("release", OLD)
def test_a_failover_that_lost_changes_is_told(release: type[RealServer]) -> None:
    with release({0: 5}) as server:
        server.fail_over(0, vbuuid=9, seqno=3)
        with pytest.raises(RollbackRequired):
            everything(server.source, start={0: at(5)}, rollback=RollbackPolicy.FAIL)


# ---- the survey, with which Spark plans --------------------------------------------------


def survey(server: RealServer, **options: Any) -> Survey:
    return Survey(Source.parse(server.source), Access(), timeout=10, **options)


@pytest.mark.parametrize("release", ALL)
def test_a_survey_tells_seqnos_and_histories(release: type[RealServer]) -> None:
    log = FailoverLog.of((9, 2), (7, 0))
    with release({0: 3, 1: 0}) as server, survey(server) as told:
        server.logs[0] = log
        assert told.high_seqnos() == {0: 3, 1: 0}
        seen = told.look()
        assert (seen[0].high_seqno, seen[0].vbuuid) == (3, 9)
        assert told.failover_logs([0, 1]) == {0: log, 1: LOG}


def test_a_server_that_tells_statistics_of_all_vbuckets_only() -> None:
    class OfAll(Release302):
        tells_of_one_vbucket = False

    with OfAll({0: 3, 1: 2}) as server, survey(server) as told:
        assert {vb: seen.high_seqno for vb, seen in told.look().items()} == {0: 3, 1: 2}
        assert told.failover_logs([1]) == {1: LOG}


@pytest.mark.parametrize("release", [Release302, Release412])
def test_a_vbucket_with_changes_and_no_history_is_an_error(release: type[RealServer]) -> None:
    with release({0: 3}) as server, survey(server) as told:
        server.logs[0] = FailoverLog(())
        with pytest.raises(NoHistory, match="no failover log of vbucket 0"):
            told.failover_logs([0])
        with pytest.raises(NoHistory):
            everything(server.source, start="now")


QUESTIONS: list[tuple[type[Any], Callable[[Survey], object]]] = [
    (kv.GetClusterConfig, lambda survey: survey.map()),
    (kv.GetManifest, lambda survey: survey.collections()),
    (kv.GetAllSeqnos, lambda survey: survey.high_seqnos()),
    (kv.Stat, lambda survey: survey.look()),
    (kv.GetFailoverLog, lambda survey: survey.failover_logs([0])),
    (kv.GetFailoverLog, lambda survey: survey.known_branches(0)),
]


@pytest.mark.parametrize(("question", "ask"), QUESTIONS)
@pytest.mark.parametrize("status", [Status.INTERNAL, Status.NO_ACCESS])
def test_a_refused_question_is_an_error_with_its_status(
    question: type[Any], ask: Callable[[Survey], object], status: Status
) -> None:
    class Refusing(Release705):
        def answered(self, talk: Any, request: Any) -> bool:
            logs = question is kv.GetFailoverLog and isinstance(request, m.FailoverLogRequest)
            if isinstance(request, question) or logs:
                talk.answer(request, status)
                return True
            return super().answered(talk, request)

    with (
        Refusing({0: 3}) as server,
        survey(server) as told,
        pytest.raises((StatusError, ConnectionFailed), match=status.name),
    ):
        ask(told)


@pytest.mark.parametrize("question", [kv.GetClusterConfig, kv.GetManifest, kv.GetAllSeqnos])
def test_a_reader_fails_with_the_question_that_was_refused(question: type[Any]) -> None:
    class Refusing(Release705):
        def answered(self, talk: Any, request: Any) -> bool:
            if isinstance(request, question):
                talk.answer(request, Status.INTERNAL)
                return True
            return super().answered(talk, request)

    with Refusing({0: 3}) as server, pytest.raises(StatusError, match="refused with INTERNAL"):
        everything(server.source)


# ---- rights on one collection ------------------------------------------------------------


@pytest.mark.parametrize("scope", [False, True])
def test_rights_on_one_collection_are_enough_to_read_until_now(scope: bool) -> None:
    class OneScope(Release705):
        manifest = b"""{"uid": "5", "scopes": [{"name": "s", "uid": "9", "collections": [
            {"name": "c", "uid": "8"}]}]}"""

        def _denied(self, request: Any) -> bool:
            return not isinstance(request, m.StreamRequest) and super()._denied(request)

    wanted: dict[str, Any] = {"scope": "s"} if scope else {"collections": ("s.c",)}
    with OneScope({0: 2, 1: 0}, only=8) as server:
        assert places(everything(server.source, **wanted)) == [(0, 1), (0, 2)]


def test_rights_on_one_collection_are_enough_to_begin_now() -> None:
    with (
        Release705({0: 2}, only=8) as server,
        Consumer(server.source, start="now", collections=("c",)) as consumer,
    ):
        wait_for_stream(server, 0)
        server.write(0)
        assert next(iter(consumer)).seqno == 3


def test_a_reader_of_everything_is_told_that_its_rights_are_too_few() -> None:
    with (
        Release705({0: 2}, only=8) as server,
        pytest.raises(StatusError, match=r"refused with NO_ACCESS.*Data DCP Reader"),
    ):
        everything(server.source)


# ---- rollbacks that go no further back than they must ------------------------------------


class Failing(Release705):
    """A node that lost its newest changes: it decides about a rollback as 7.0.5 does."""

    def stream(self, talk: Conversation, request: m.StreamRequest) -> None:
        claim = StreamOffset(
            request.vbuuid,
            request.start,
            Snapshot(request.snapshot_start or 0, request.snapshot_end or 0),
        )
        point = rollback_point(
            self.logs[request.vbucket], claim, high_seqno=self.high(request.vbucket)
        )
        if point is None:
            super().stream(talk, request)
        else:
            talk.send(m.StreamRollback(opaque=request.opaque, seqno=point))


@pytest.mark.parametrize("on_a_new_branch", [True, False])
def test_a_reader_that_began_now_goes_back_only_as_far_as_the_server_lost(
    on_a_new_branch: bool,
) -> None:
    """It was at 374 and is sent to 365: nothing before that is read again."""
    told: list[tuple[int, int]] = []

    def rolled_back(rollback: Rollback) -> None:
        told.append((rollback.from_seqno, rollback.to_seqno))

    with (
        Failing({0: 370}) as server,
        Consumer(server.source, start="now", on_rollback=rolled_back, **SOON) as consumer,
    ):
        changes = iter(consumer)
        wait_for_stream(server, 0)
        server.write(0, 4)
        assert [next(changes).seqno for _ in range(4)] == [371, 372, 373, 374]
        server.fail_over(0, vbuuid=9, seqno=365)
        if not on_a_new_branch:
            server.logs[0] = LOG
        talk, _ = server.streams.pop(0)
        talk.hang_up()
        wait_for_stream(server, 0)
        server.write(0)
        assert next(changes).seqno == 366
        assert told == [(374, 365)]


def test_a_reader_goes_back_to_the_newest_snapshot_that_it_has_seen_whole() -> None:
    with Failing({0: 3}) as server, Consumer(server.source, **SOON) as consumer:
        changes = iter(consumer)
        for _ in range(3):
            next(changes)
        for expected in (6, 9, 12):
            server.write(0, 3)
            assert [next(changes).seqno for _ in range(3)][-1] == expected
        server.fail_over(0, vbuuid=9, seqno=10)
        server.streams.pop(0)[0].hang_up()
        assert next(changes).seqno == 10
        assert consumer.status().counts["rollback: diverged"] == 1
