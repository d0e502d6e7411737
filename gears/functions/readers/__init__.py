"""This room looks after the readers of a shard: their keys, copies and warming."""
