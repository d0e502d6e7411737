"""This room keeps the readers of a shard: their keys, copies and warming."""
