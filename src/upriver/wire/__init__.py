"""Bytes to messages and back, for every draft. No I/O, no clock, no logging."""
