"""Consumer groups: several processes share the vbuckets of a bucket, by leases in a store."""
