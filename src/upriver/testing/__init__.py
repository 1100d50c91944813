"""Helpers for people who test change-stream code: a real producer in this process."""

from .temporary import TemporaryProducer

__all__ = ["TemporaryProducer"]
