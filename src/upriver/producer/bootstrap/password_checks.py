"""Checks of passwords: how many may be under way, for one address and in all.

A check costs milliseconds of processor time on purpose. So whoever guesses passwords would slow
down everybody else, whichever port the guesses come to. All ports of a server share one object of
this class: above a limit a check is refused, before it costs anything. A wrong password counts for
its address for a while longer, also if its client has gone, and an address that has sent one lately
has a lower limit: many clients of one machine may begin at the same time, but do not guess.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from ...errors import Status, StoreRefusal
from ..keyvalue import BackgroundWork

_T = TypeVar("_T")

#: Checks under way or waiting for a thread: two seconds of work.
MOST_CHECKS: Final = 512
#: The same for one address, and for one with wrong passwords, which count too.
MOST_OF_ADDRESS: Final = 128
MOST_OF_GUESSER: Final = 8
#: Seconds after which a client that is refused may try again, for HTTP's Retry-After.
RETRY_SECONDS: Final = 1
#: Bits of an IPv6 address that identify a site: whoever has one address there has all of them.
_SITE_BITS: Final = 64


class Threads(Protocol):
    """Runs a call in a thread of its class."""

    def __call__(self, work: BackgroundWork, call: Callable[[], _T], /) -> Future[_T]: ...


class PasswordChecks:
    """Runs checks of passwords in threads. Any thread may use it."""

    def __init__(self, in_thread: Threads, *, held: float, clock: Callable[[], float]) -> None:
        """A wrong password counts for ``held`` seconds after its check."""
        self._in_thread = in_thread
        self._held_seconds = held
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        #: What counts for each address, and how many of it are wrong passwords.
        self._of_address: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        #: When wrong passwords no longer count.
        self._held: deque[tuple[float, str]] = deque()

    def submit(
        self,
        address: str,
        check: Callable[[], _T],
        is_wrong: Callable[[_T], bool] = lambda found: found is None,
    ) -> Future[_T]:
        """Runs a check for a client at an address.

        Above a limit it raises a `StoreRefusal`. ``is_wrong`` says whether the check has found the
        password wrong, by default by returning None.
        """
        site = _site(address)
        with self._lock:
            self._forget_old()
            most = MOST_OF_GUESSER if site in self._wrong else MOST_OF_ADDRESS
            if self._of_address[site] >= most:
                raise _refusal("too many passwords from this address are checked")
            if self._under_way >= MOST_CHECKS:
                raise _refusal("too many passwords are checked")
            self._under_way += 1
            self._of_address[site] += 1
        try:
            future = self._in_thread(BackgroundWork.HASHING, check)
        except BaseException:
            self._ended(site, wrong=False)
            raise

        def ended(done: Future[_T]) -> None:
            ran = not done.cancelled()
            wrong = ran and (done.exception() is not None or is_wrong(done.result()))
            self._ended(site, wrong=wrong)

        future.add_done_callback(ended)
        return future

    def _ended(self, site: str, *, wrong: bool) -> None:
        with self._lock:
            self._under_way -= 1
            if wrong:
                self._wrong[site] += 1
                self._held.append((self._clock() + self._held_seconds, site))
            else:
                _release(self._of_address, site)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._held and self._held[0][0] <= now:
            _, site = self._held.popleft()
            _release(self._wrong, site)
            _release(self._of_address, site)


def _release(counts: Counter[str], site: str) -> None:
    counts[site] -= 1
    if not counts[site]:
        del counts[site]


def _refusal(rule: str) -> StoreRefusal:
    return StoreRefusal(Status.TEMPORARY_FAILURE, f"{rule}; try again later")


def _site(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, _SITE_BITS), strict=False))
