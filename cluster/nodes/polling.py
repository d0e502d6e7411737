"""The intervals at which commands poll servers."""

# The usual interval: users do not notice it, and the load on the servers is negligible.
POLL_SECONDS = 0.05
# The interval for polls that cause work on every shard.
HEAVY_POLL_SECONDS = 0.1
