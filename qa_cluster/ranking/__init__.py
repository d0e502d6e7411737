"""Chooses the sentences that are worth reading: terms, the weights in the index, BM25 over all shards."""
