"""Streaming: the engine that reads from all nodes, and the inbox that feeds the application."""
