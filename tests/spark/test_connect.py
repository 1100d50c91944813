"""Spark Connect: a client of its own, which needs the packages of ``pyspark[connect]``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparkkit import PATIENCE, fill

from upriver.spark.runtime.find_java import ensure_java_home
from upriver.testing import TemporaryProducer

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

CLIENT = """
import sys
from pyspark.sql import SparkSession
from upriver.spark import mirror, register, verify

source, target, home = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
frame = spark.read.format("dcp").load(source)
print(frame.count(), frame.where("vbucket = 1").count())
frame.select("op", "key", "value").write.format("dcp").mode("append").save(target)
print(spark.read.format("dcp").load(target).count())
rows = spark.readStream.format("dcp").load(source).writeStream.format("parquet")
query = rows.option("checkpointLocation", home + "/at").trigger(availableNow=True)
query.start(home + "/rows").awaitTermination()
print(spark.read.parquet(home + "/rows").count())
mirror(spark, source=source, table=home + "/table", once=True).wait()
print(verify(spark, source=source, table=home + "/table").verdict)
spark.stop()
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(ensure_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Spark's own tests say so to get any free port instead of 15002, which others may have.
        "SPARK_TESTING": "1",
    }


def test_a_client_of_connect_reads_streams_writes_mirrors_and_verifies(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=4) as producer, TemporaryProducer(vbuckets=4) as target:
        fill(producer, range(100))
        answer = subprocess.run(
            [sys.executable, "-c", CLIENT, producer.source, target.source, str(tmp_path)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == ["100 25", "100", "100", "equal"]
