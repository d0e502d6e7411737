"""These are the functions that qa-cluster registers on every shard; they use the public RG API only."""
