"""A reader that is killed again and again: its data and its positions are saved together.

    python chaos_reader.py SOURCE OUTPUT STATE

Lines of what happened go to OUTPUT; STATE holds how much of it counts, and the positions at that
point. What lies behind it is of a life that ended too soon, and is cut off.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from upriver.consumer import Checkpoint, Consumer, RolledBack, Rows
from upriver.consumer.changes import changes_of


class Saved:
    """A checkpoint store that says with the positions how much output belongs to them."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.size = 0

    def load(self) -> Checkpoint | None:
        if not self._state.exists():
            return None
        stored = json.loads(self._state.read_text())
        self.size = stored["size"]
        return Checkpoint.from_json(stored["checkpoint"])

    def save(self, checkpoint: Checkpoint) -> None:
        text = json.dumps({"size": self.size, "checkpoint": checkpoint.to_json()})
        new = self._state.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self._state)


def main() -> None:
    source, output, state = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    saved = Saved(state)
    consumer = Consumer(
        source, checkpoint=saved, noop_interval=0.5, connect_timeout=2.0, wait_at_start=60.0,
        retry_first=0.01, retry_most=0.1, buffer=64 * 1024,
    )  # fmt: skip
    output.touch()
    os.truncate(output, saved.size)
    with output.open("ab") as lines, consumer:
        while True:
            event = consumer.poll(timeout=0.05)
            if isinstance(event, Rows):
                for change in changes_of(event.batch):
                    told = [
                        change.vbucket,
                        change.seqno,
                        change.key.decode(),
                        change.value.decode(),
                    ]
                    lines.write(json.dumps(told).encode() + b"\n")
            elif isinstance(event, RolledBack):
                lines.write(json.dumps([event.vbucket, event.to.seqno]).encode() + b"\n")
            else:
                continue
            lines.flush()
            saved.size = lines.tell()
            consumer.save()


if __name__ == "__main__":
    main()
