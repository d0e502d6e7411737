"""`qa-cluster node` and `qa-cluster check`: a server of a cluster on this host."""
