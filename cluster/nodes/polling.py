"""The intervals at which commands poll servers."""

# Short for users, but long enough for negligible load on the servers.
POLL_SECONDS = 0.05
# For polls that cause work on every shard.
HEAVY_POLL_SECONDS = 0.1
