"""The rules of the conversation, without I/O: windows, timers, options, decisions."""
