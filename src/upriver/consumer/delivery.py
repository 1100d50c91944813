"""What an engine hands to an application, and who gets the room back that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UpriverError
from ..session.events import Event
from .node import NodeConnection

__all__ = ["Closed", "Delivery", "Failed", "Finished"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The reading cannot go on."""

    error: UpriverError


@dataclass(frozen=True, slots=True)
class Finished:
    """Every vbucket was read up to its end."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The application hung up, perhaps in another thread than the one that waits."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something for the application. A carrier counts it as held until it is given back."""

    event: Event | Failed | Finished | Closed
    carrier: NodeConnection | None = None
