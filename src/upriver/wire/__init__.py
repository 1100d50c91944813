"""The wire protocol: bytes to messages and back, for every draft. No I/O, no clock, no logging."""

# The modules that users may import; importing the package loads none of them.
__all__ = ["canonical", "columns", "dialects", "framing", "kv_messages", "messages"]
