"""This room runs functions: their plans and sources, the way of records through the steps, and runs over all shards."""
