"""Couchbase's own Node SDK, unmodified: documents, management and transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from upriver.testing import TemporaryProducer

PROGRAM = Path(__file__).with_name("node_client.js")
#: Where ``npm install couchbase`` was given, unless NODE_PATH says otherwise.
MODULES = Path(__file__).parents[2] / "node_modules"


def test_the_node_sdk() -> None:
    node = shutil.which("node")
    environment = {"NODE_PATH": str(MODULES), **os.environ}
    if node is None:
        pytest.skip("node is not installed")
    has_sdk = subprocess.run(
        (node, "-e", 'require("couchbase")'), env=environment, capture_output=True, check=False
    )
    if has_sdk.returncode:
        pytest.skip("the package couchbase of npm is not installed: npm install couchbase")
    with TemporaryProducer(vbuckets=64) as producer:
        source = f"couchbase://{producer.host}:{producer.port}"
        done = subprocess.run(
            (node, str(PROGRAM), source),
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
