"""This room is the shard as functions of users see it: their executions, rights, atomic blocks and threads."""
