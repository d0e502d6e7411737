"""This room is the lowest: commands and links to the shard, messages to other shards, failures and limits."""
