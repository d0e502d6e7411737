"""The bottom, which knows no other room: links to the shard and its peers, executions, failures and limits."""
