"""Administration of a cluster from outside: its nodes, their slots, and work on all shards."""
