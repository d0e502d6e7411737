"""This room is the shard's interface for user functions: executions, rights, atomic blocks and threads."""
