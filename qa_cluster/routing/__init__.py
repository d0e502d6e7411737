"""Connections to the shards of a cluster, and the way of each command to the shard of its key."""
