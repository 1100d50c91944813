"""One page to watch a producer and pipelines, and their figures for Prometheus."""
