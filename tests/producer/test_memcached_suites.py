"""Clients and suites of memcached: memccapable of libmemcached, and pylibmc over its library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
from serverkit import SECRET, users_file

from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

#: Where Debian has what libsasl signs in with; the library in pylibmc's wheel looks elsewhere.
SASL_MODULES = glob("/usr/lib/*/sasl2")


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=1) as producer:
        yield producer


def test_memccapable_has_nothing_to_complain_of(producer: TemporaryProducer) -> None:
    suite = shutil.which("memccapable") or shutil.which("memcapable")
    if suite is None:
        pytest.skip("memccapable is not installed: it is in Debian's libmemcached-tools")
    words = (suite, "-b", "-h", producer.host, "-p", str(producer.port), "-t", "60")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[pass]") == 27


def test_pylibmc(producer: TemporaryProducer) -> None:
    pylibmc = pytest.importorskip("pylibmc", reason="the pylibmc package is not installed")
    client = pylibmc.Client([f"{producer.host}:{producer.port}"], binary=True)
    assert client.set("text", "value")
    assert not client.add("text", "other")
    assert client.append("text", "!")
    assert client.get("text") == "value!"
    assert client.set_multi({"a": 1, "b": 2}) == []
    assert client.get_multi(["a", "b", "c"]) == {"a": 1, "b": 2}
    assert (client.incr("a", 4), client.decr("b")) == (5, 1)
    assert client.delete("a")
    assert client.get("a") is None


#: In a process of its own, because the library looks for its modules once.
SIGNING_IN = """
import sys, pylibmc
server, password = sys.argv[1:]
client = pylibmc.Client([server], binary=True, username="old", password=password)
client.set("text", "value")
print(client.get("text"))
"""


def test_pylibmc_signs_in(tmp_path: Path) -> None:
    pytest.importorskip("pylibmc", reason="the pylibmc package is not installed")
    if not SASL_MODULES:
        pytest.skip("PLAIN of libsasl is not installed: it is in Debian's libsasl2-modules")
    environment = {**os.environ, "SASL_PATH": os.pathsep.join(SASL_MODULES)}
    users = users_file(tmp_path, {"old": (Role.READ_DATA, Role.WRITE_DATA)})
    settings = ServerSettings(users=users, authentication_delay=0)
    with TemporaryProducer(vbuckets=1, settings=settings) as guarded:

        def signed_in(password: str) -> str:
            words = (sys.executable, "-c", SIGNING_IN, f"{guarded.host}:{guarded.port}", password)
            run = subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
            return run.stdout + run.stderr

        assert signed_in(SECRET) == "value\n"
        assert "AUTHENTICATION" in signed_in("a guess")
