"""This room is the lowest one: commands and links to the shard, messages to other shards, failures and limits."""
