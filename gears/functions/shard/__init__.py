"""This room knows the slots, partitions and locks of the shard that the functions run on."""
