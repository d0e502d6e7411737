"""This room loads, copies, warms and reports the readers of a shard, which are stored in keys."""
