"""This room is the shard as users' functions see it: executions, rights, atomic blocks and threads."""
