"""Spark itself: its version, its Java, and its private interfaces."""
