"""This room knows the slots, partitions and locks of the shard on which the functions run."""
