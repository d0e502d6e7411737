"""The readers of a shard: their keys, copies and warming."""
