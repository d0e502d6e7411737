"""`qa-cluster backup` and `qa-cluster restore`."""
