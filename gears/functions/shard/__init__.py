"""Slots, partitions and locks of the shard the functions run on."""
