"""A member of a group that is killed and paused: tells each change before it saves its position.

    python group_member.py SOURCE MEMBERS OUTPUT LEASE

A line of OUTPUT is [vbucket, seqno, rollbacks]; a line [vbuckets, "assigned" or "revoked"] says
what the group did.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from upriver.consumer import Consumer, Revocation, Rows


def main() -> None:
    source, members, output, lease = sys.argv[1:5]
    told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(*lines: Any) -> None:
        os.write(told, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def revoked(revocation: Revocation) -> None:
        consumer.save()
        tell([sorted(revocation.vbuckets), "lost" if revocation.lost else "revoked"])

    consumer = Consumer(
        source, group="chaos", members=members, lease=float(lease), wait_at_start=60.0,
        retry_first=0.01, retry_most=0.1, buffer=16 * 1024,
        on_assigned=lambda vbuckets: tell([sorted(vbuckets), "assigned"]), on_revoked=revoked,
    )  # fmt: skip
    with consumer:
        while True:
            event = consumer.poll(0.05)
            if isinstance(event, Rows):
                rows = event.batch.select(["vbucket", "seqno"]).to_pylist()
                tell(*([row["vbucket"], row["seqno"]] for row in rows))
            consumer.save()


if __name__ == "__main__":
    main()
