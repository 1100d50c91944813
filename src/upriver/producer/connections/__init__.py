"""Connections of the server: accepting, buffering, scheduling, and responding in order."""
