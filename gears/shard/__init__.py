"""The lowest room, which imports no other: links to the shard and its peers, executions, failures and limits."""
