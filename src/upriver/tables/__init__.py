"""Tables that stay equal to a bucket: Delta tables and the pipelines that keep them."""
