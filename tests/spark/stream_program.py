"""A program that streams a bucket into files, for tests that kill it.

    python stream_program.py MASTER SOURCE CHECKPOINT OUTPUT [drain]

It goes on until it is killed; with "drain" it ends when it has read what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from upriver.spark.session import session


def main() -> None:
    master, source, checkpoint, output, *mode = sys.argv[1:]
    spark = session(
        "killed again and again",
        master=master,
        config={
            "spark.driver.memory": "1g",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.sql.warehouse.dir": str(Path(output).parent / "warehouse"),
            "spark.log.level": "ERROR",
        },
    )
    changes = (
        spark.readStream.format("dcp")
        .options(maxOffsetsPerTrigger="300", numPartitions="2", minPartitions="2")
        .load(source)
    )
    writer = changes.writeStream.format("parquet").options(
        path=output, checkpointLocation=checkpoint
    )
    if mode == ["drain"]:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime="0 seconds").start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
