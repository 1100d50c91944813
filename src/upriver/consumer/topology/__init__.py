"""Topology: nodes, cluster map, collection names, and requests that find them out."""
