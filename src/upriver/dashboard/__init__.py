"""The dashboard: a web page and Prometheus metrics of a server and of table pipelines."""
