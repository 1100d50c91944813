"""Archives the Java classes that Spark loads in the tests, so that it starts in half the time.

    python tools/spark_archive.py FILE

Starts Spark once, reads a bucket as a batch and as a stream, and has Java write what it has loaded
(class data sharing). Java uses the file only with the jars and the version that it was made with,
and starts as usual otherwise. tests/conftest.py names it to every Spark that a test starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Short runs never win back what the second compiler and a parallel collector cost.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Java's own notes about the archive would be in the output of commands.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def java_options(archive: Path) -> str:
    """What Spark's Java is started with; the archive too, if it is there."""
    shared = f" -XX:SharedArchiveFile={archive} {_SILENT}" if archive.exists() else ""
    return SHORT_LIVED + shared


def _use_spark() -> None:
    """Some of everything that the tests do with Spark."""
    from pyspark.sql import functions as f

    from upriver.spark import mirror, session, verify
    from upriver.testing import TemporaryProducer

    with tempfile.TemporaryDirectory() as directory, TemporaryProducer(vbuckets=4) as producer:
        for number in range(100):
            producer.write(b"k%d" % number, b'{"n":%d}' % number)
        spark = session("archive", master="local[2]", config={"spark.log.level": "ERROR"})
        rows = spark.read.format("dcp").load(producer.source)
        rows.groupBy("vbucket").agg(f.count("*"), f.max("seqno")).orderBy("vbucket").collect()
        stream = spark.readStream.format("dcp").load(producer.source).writeStream
        query = stream.trigger(availableNow=True).start(
            f"{directory}/rows", format="parquet", checkpointLocation=f"{directory}/checkpoint"
        )
        query.awaitTermination()
        table = f"{directory}/table"
        mirror(spark, source=producer.source, table=table, once=True).wait()
        verify(spark, source=producer.source, table=table)
        spark.stop()


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    archive.unlink(missing_ok=True)
    new = archive.with_name(f"{archive.name}.new")
    writing = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={new} {_SILENT}"
    program = [sys.executable, __file__]
    done = subprocess.run(
        program, env={**os.environ, "SPARK_SUBMIT_OPTS": writing}, capture_output=True, text=True
    )
    if done.returncode or not new.exists():
        # slower tests are no reason to have none
        print(f"no archive of Spark's classes was made:\n{done.stderr[-2000:]}", file=sys.stderr)
        return
    new.replace(archive)


if __name__ == "__main__":
    main() if len(sys.argv) > 1 else _use_spark()
