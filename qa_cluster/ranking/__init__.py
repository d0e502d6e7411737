"""Which sentences are worth reading: terms, the weights that documents are indexed with, BM25 over all shards."""
