"""Ctrl-C ends a wait that begins at the very moment at which the signal comes.

Python notes a signal and runs its handler before the next instruction, or when the signal
interrupts a system call. After a signal between the last instruction and the call, the handler runs
when the call ends: where a server says nothing, never.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import Final

#: Seconds after a signal at which the main thread's system call is interrupted, if it still is in
#: one. Several, because a thread may pause before its call for as long as the machine is busy.
_PAUSES: Final = (0.05, 0.5, 5.0)
#: Its handler does nothing; that there is one makes system calls return.
_INTERRUPTION: Final = signal.SIGURG


def handle_pending_signals() -> None:
    """From here on, each signal is handled soon, whatever the main thread waits for."""
    notes, noting = socket.socketpair()
    noting.setblocking(False)
    signal.signal(_INTERRUPTION, lambda *_: None)
    signal.set_wakeup_fd(noting.fileno(), warn_on_full_buffer=False)
    threading.Thread(
        target=_interrupt, args=(notes, noting), name="upriver signals", daemon=True
    ).start()


def _interrupt(notes: socket.socket, noting: socket.socket) -> None:
    """Holds ``noting`` too, which signals are written to for as long as the program runs."""
    main = threading.main_thread().ident
    assert main is not None
    while numbers := notes.recv(64):
        if set(numbers) != {_INTERRUPTION}:
            for pause in _PAUSES:
                time.sleep(pause)
                signal.pthread_kill(main, _INTERRUPTION)
