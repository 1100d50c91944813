"""Tables that stay equal to a bucket: change log and mirror, their pipelines and their care."""
