"""This room runs pipelines: their plans and sources, the passing of records through steps, and runs over all shards."""
