"""This room has the slots, partitions and locks of the shard."""
