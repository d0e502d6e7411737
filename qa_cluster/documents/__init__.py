"""Documents: from users' files, as they are split into sentences, and as the shards store them."""
