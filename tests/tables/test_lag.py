"""How far a table is behind: in changes and in seconds, of the vbuckets that it is of."""

from __future__ import annotations

from upriver.batches.offsets import Offset, VBucketProgress
from upriver.batches.options import ReadOptions
from upriver.batches.stream_driver import Driver
from upriver.model import FailoverLog
from upriver.tables.lag import Lag, LagMeter
from upriver.testing import TemporaryProducer


def test_lag_is_0_when_the_table_has_all_that_it_is_of() -> None:
    with TemporaryProducer(vbuckets=4) as producer:
        now = 100.0
        options = ReadOptions.parse({"connectionString": producer.source, "vbuckets": "0-1"})
        driver = Driver(options)
        meter = LagMeter(driver, clock=lambda: now)

        def shown(**seqnos: int) -> Offset:
            log = FailoverLog.of((1, 0))
            return Offset(
                driver.identity(),
                {int(vb[2:]): VBucketProgress(seqno=at, log=log) for vb, at in seqnos.items()},
            )

        try:
            assert meter.measure() == Lag(0, 0.0)
            for vbucket in range(4):
                for number in range(5):
                    producer.write(b"k%d" % number, b"{}", vbucket)
            now = 110.0
            assert meter.measure() == Lag(10, 10.0)  # not those of vbuckets that are not wanted
            meter.shown = shown(vb0=5, vb1=3)
            now = 115.0
            assert meter.measure() == Lag(2, 15.0)
            producer.write(b"more", b"{}", 0)
            now = 120.0
            assert meter.measure() == Lag(3, 20.0)
            meter.shown = shown(vb0=5, vb1=5)
            # it has all that there was when it was looked at before the last write
            assert meter.measure() == Lag(1, 5.0)
            meter.shown = shown(vb0=6, vb1=5)
            assert meter.measure() == Lag(0, 0.0)
            meter.choose(None)
            assert meter.measure() == Lag(0, 0.0)
        finally:
            meter.close()
