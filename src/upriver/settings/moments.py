"""Points in time as users write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ..errors import ConfigError

_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_moment(text: str, option: str, now: datetime | None = None) -> datetime:
    """A point in time: ISO 8601 (UTC if it names no zone), or how long ago, such as 10m or 2h."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            past = timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            return (now or datetime.now(UTC)) - past
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:
        raise ConfigError(f"{option} {text!r} is too long ago, or too far ahead") from None
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is no time; give ISO 8601, such as 2026-11-17T10:00:00, or how "
            "long ago, such as 90s, 10m, 2h or 3d"
        ) from None
