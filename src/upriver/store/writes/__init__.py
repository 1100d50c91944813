"""Writes to a bucket: operations on documents, replication, write groups and their commit."""
