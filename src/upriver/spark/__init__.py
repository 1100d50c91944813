"""Spark: source, sink, tables and pipelines. It uses the consumer and never the producer."""
