"""qa-cluster's own functions. They run on the worker's event loop, with the worker's rights."""
