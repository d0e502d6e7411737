"""qa-cluster's own functions. These functions run on the worker's event loop, with the worker's rights."""
