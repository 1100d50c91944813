"""A program that keeps a table of a bucket and kills itself after a step of a batch.

    python killed_driver.py SOURCE TABLE OPTIONS STEP COUNT [spark]

OPTIONS are those of the pipeline, as a JSON object, and may name its ``kind``. It ends after the
COUNTth time that it has done STEP, as nothing else can end it; without a STEP it goes on until
somebody else kills it. Each line that it prints is a step that was done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from upriver.spark.executors import executors_of
from upriver.spark.session import session
from upriver.tables import pipeline_tables
from upriver.tables.executors import Executors, ThisProcess
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import place_of, start_pipeline
from upriver.tables.upkeep import compaction


def main() -> None:
    source, table, options, doomed, count = sys.argv[1:6]
    # what happens seldom in large tables happens often here
    pipeline_tables.CHECKPOINT_EVERY = 3  # type: ignore[misc]
    compaction._MOST_ALIKE = 3  # type: ignore[misc]
    left = int(count)

    def on_step(step: str) -> None:
        nonlocal left
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        if step == doomed:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    executors: Executors | Callable[[], Executors] = ThisProcess()
    if "spark" in sys.argv[6:]:
        spark = session(
            "killed",
            master="local[2,4]",
            config={
                "spark.driver.memory": "1g",
                "spark.log.level": "ERROR",
            },
        )
        executors = executors_of(spark)
    given = json.loads(options)
    settings = PipelineSettings.parse(given.pop("kind", "mirror"), source, given)
    start_pipeline(executors, settings, place_of(table, settings), on_step=on_step).wait()


if __name__ == "__main__":
    main()
