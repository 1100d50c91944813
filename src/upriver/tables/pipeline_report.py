"""A page about how a pipeline went: numbers, and charts drawn as SVG.

It is one text that needs nothing from anywhere, so it can be mailed and kept.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from .heartbeat import Heartbeat
from .progress_log import BatchRecord

_WIDTH: Final = 960
_HEIGHT: Final = 180
_LEFT: Final = 70
_BOTTOM: Final = 24
_TOP: Final = 10
#: Points of a curve: about one for each pixel. Of more batches, the highest of neighbours count.
_POINTS: Final = 800

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:980px;padding:0 1rem;
color:#1a1a1a;background:#fff}
h1{font-size:1.4rem;margin-bottom:.2rem}h2{font-size:1.05rem;margin:1.6rem 0 .2rem}
p.path{color:#666;margin-top:0;word-break:break-all}
dl{display:flex;flex-wrap:wrap;gap:.4rem 2rem;margin:1rem 0}
dt{color:#666;font-size:.85rem}dd{margin:0;font-size:1.2rem;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}
.grid{stroke:#ddd}.axis{fill:#666;font-size:11px}.line{fill:none;stroke:#1f6feb;stroke-width:1.5}
.area{fill:#1f6feb;opacity:.12}.rollback{stroke:#d1242f;stroke-width:1.5;stroke-dasharray:4 3}
.run{stroke:#999;stroke-dasharray:1 3}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}.grid{stroke:#333}
.axis,p.path,dt{fill:#999;color:#999}}
"""


def page(table: str, records: Sequence[BatchRecord], now: Heartbeat | None = None) -> str:
    """The page for the batches of the last runs, oldest first, and what is known ``now``."""
    charts = [
        _chart("Throughput, changes a second", records, lambda r: r.rows / max(r.seconds, 1e-3)),
        _chart("Lag, changes behind the bucket", records, lambda r: r.lag),
        _chart("Lag, seconds behind the bucket", records, lambda r: r.lag_seconds),
        _chart("Delay of the newest change, seconds", records, lambda r: r.delay),
        _chart("Time of a batch, seconds", records, lambda r: r.seconds),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Upriver: {html.escape(table)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>How the pipeline went</h1><p class="path">{html.escape(table)}</p>'
        f"{_present(now)}{_numbers(records)}{''.join(charts)}"
        "<p>Red lines are rollbacks, dotted lines begin a run.</p></body></html>\n"
    )


def _present(now: Heartbeat | None) -> str:
    """What the pipeline does, and how far its table is behind, when the page is made."""
    if now is None:
        return ""
    lag = "not known" if now.lag is None else f"{now.lag:,} changes"
    text = f"{now.state} since {_moment(now.since)}; behind: {lag}"
    if now.reason:
        text += f"; {now.reason}"
    return f"<p><b>{html.escape(text)}</b></p>"


def _numbers(records: Sequence[BatchRecord]) -> str:
    spent = sum(record.seconds for record in records)
    rows = sum(record.rows for record in records)
    slowest = max(record.seconds for record in records)
    facts = {
        "from": _moment(records[0].time),
        "to": _moment(records[-1].time),
        "runs": str(len({record.run for record in records})),
        "batches": f"{len(records):,}",
        "changes": f"{rows:,}",
        "changes a second": f"{rows / spent:,.0f}" if spent else "0",
        "slowest batch": f"{slowest:.2f} s",
        "rollbacks": f"{sum(record.rollbacks for record in records):,}",
        "dead letters": f"{sum(record.dead_letters for record in records):,}",
    }
    cells = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f"<dl>{''.join(cells)}</dl>"


def _chart(
    title: str, records: Sequence[BatchRecord], value: Callable[[BatchRecord], float | None]
) -> str:
    first, last = records[0].time, records[-1].time
    known = [(record.time, found) for record in records if (found := value(record)) is not None]
    if not known:
        return f"<h2>{title}</h2><p>not known</p>"
    top = max(one for _, one in known) or 1.0
    inner, tall = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM

    def x(moment: float) -> float:
        return _LEFT + inner * ((moment - first) / (last - first) if last > first else 0.5)

    def y(height: float) -> float:
        return _TOP + tall * (1 - height / top)

    points = " ".join(f"{x(moment):.1f},{y(height):.1f}" for moment, height in _thinned(known))
    base = _TOP + tall
    area = f"{x(known[0][0]):.1f},{base} {points} {x(known[-1][0]):.1f},{base}"
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" '
        f'y1="{y(part):.1f}" y2="{y(part):.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y(part) + 4:.1f}" text-anchor="end">{part:,.4g}'
        "</text>"
        for part in (0.0, top / 2, top)
    )
    times = "".join(
        f'<text class="axis" x="{at}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{_moment(moment)}'
        "</text>"
        for at, anchor, moment in ((_LEFT, "start", first), (_WIDTH - 10, "end", last))
    )
    marks = "".join(
        f'<line class="{kind}" x1="{x(record.time):.1f}" x2="{x(record.time):.1f}" y1="{_TOP}" '
        f'y2="{base}"><title>{said} in batch {record.batch}</title></line>'
        for kind, said, record in _marks(records)
    )
    return (
        f'<h2>{title}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
        f'{grid}{times}<polygon class="area" points="{area}"/>'
        f'<polyline class="line" points="{points}"/>{marks}</svg>'
    )


def _marks(records: Sequence[BatchRecord]) -> list[tuple[str, str, BatchRecord]]:
    found = []
    run = records[0].run
    for record in records:
        if record.run != run:
            run = record.run
            found.append(("run", "a new run", record))
        if record.rollbacks:
            found.append(("rollback", f"{record.rollbacks} rollbacks", record))
    return found


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // _POINTS)
    return [
        max(points[at : at + step], key=lambda point: point[1])
        for at in range(0, len(points), step)
    ]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
