"""Documents: how they are read from users' files, split into sentences, and stored on the shards."""
