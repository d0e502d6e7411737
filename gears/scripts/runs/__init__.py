"""This room runs pipelines: plans and sources, the steps of records, and runs over all shards."""
