"""Whom the driver of a query asks about a bucket: its nodes, or streams where none answers.

Which it is, is found out once, before the first answer is needed. A bucket whose nodes answer
questions costs nothing for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from ..consumer.topology.cluster_view import NODE_TROUBLE, is_final
from ..consumer.topology.seqno_survey import Survey
from .offsets import Offset
from .options import MuteServer, ReadOptions
from .source_access import asking_survey
from .streamed_survey import StreamedSurvey, find_mute

#: Seconds that questions are asked until it is looked again whether the server answers any.
_ASKED_FOR: Final = 5.0


class BucketSurvey:
    """Questions to the nodes of a bucket; or streams, of a server that answers none."""

    def __init__(self, options: ReadOptions, *, partial_after: float) -> None:
        self._options = options
        self._questions = asking_survey(options, options.retry_timeout, partial_after=partial_after)
        self._are_answered = False
        self._streams: StreamedSurvey | None = None
        if options.mute is not None:
            self._streams = StreamedSurvey(options, options.mute)

    def close(self) -> None:
        self._questions.close()
        if self._streams is not None:
            self._streams.close()

    def interrupt(self) -> None:
        """Ends what waits for a node in another thread, with `Interrupted`."""
        self._questions.interrupt()
        if self._streams is not None:
            self._streams.interrupt()

    @property
    def waits(self) -> tuple[float, str] | None:
        """Since when no node answers, in seconds since 1970, and why; None while nodes do."""
        return (self._questions if self._streams is None else self._streams).waits

    @property
    def found(self) -> Survey | StreamedSurvey:
        """The survey that the server can answer."""
        if self._streams is None and not self._are_answered:
            self._find_out()
        return self._questions if self._streams is None else self._streams

    @property
    def mute(self) -> MuteServer | None:
        """What there is to know of a server that answers no questions."""
        found = self.found
        return found.server if isinstance(found, StreamedSurvey) else None

    def applied_to(self, options: ReadOptions) -> ReadOptions:
        """The options with what was found out about the server."""
        mute = self.mute
        if mute is None:
            return options
        chosen = options.vbuckets
        vbuckets = mute.vbuckets if chosen is None else mute.vbuckets & chosen
        return replace(options, mute=mute, vbuckets=vbuckets)

    def follow(self, offset: Offset) -> None:
        """Says how far the bucket is read to what would otherwise look from its beginning."""
        found = self.found
        if isinstance(found, StreamedSurvey):
            found.follow({vb: at.end_position for vb, at in offset.progress.items()})

    def _find_out(self) -> None:
        deadline = time.monotonic() + self._options.retry_timeout
        patience = 0.0
        while True:
            try:
                self._questions.map(patience=patience)
                self._are_answered = True
                return
            except NODE_TROUBLE as problem:
                if is_final(problem):
                    raise
                mute = find_mute(self._options)
                if mute is not None:
                    self._streams = StreamedSurvey(self._options, mute)
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                patience = min(_ASKED_FOR, left)
