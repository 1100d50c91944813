"""A source for dlt: a bucket's documents in a table of any database that dlt can merge into."""

from .source import dcp_source

__all__ = ["dcp_source"]
