"""Scripts and functions that run on the shards, on real servers."""
