"""Connects to the shards of a cluster and sends each command to the shard of its key."""
