"""The way to the shard: its start line, links, peers, executions and threads. Imports no other room."""
