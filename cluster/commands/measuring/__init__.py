"""`qa-cluster eval` and `qa-cluster bench`: measure quality and speed."""
