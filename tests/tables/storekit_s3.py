"""An S3 server of its own for tests: moto, in a process."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from waiting import until

#: Seconds until the server must answer; never reached when all is well.
PATIENCE = 300.0
BUCKET = "lake"
SECRET = "a-secret-that-nobody-repeats"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Runs a server with one bucket; gives the variables by which it is reached."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        variables = {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
        }
        _make_bucket(variables["AWS_ENDPOINT_URL"], port, server)
        yield variables
    finally:
        server.terminate()
        server.wait()


def _make_bucket(url: str, port: int, server: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    until(answers, unless=lambda: server.poll() is not None and "the S3 server has ended")
    request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=PATIENCE).close()
