"""`qa-cluster node` and `qa-cluster check`: run a server of a cluster on this host, and check whether it can run."""
