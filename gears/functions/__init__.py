"""The functions qa-cluster registers on every shard, written against the public RG API only."""
