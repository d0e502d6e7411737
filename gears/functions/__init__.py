"""The functions that qa-cluster registers on every shard; they use only the public RG API."""
