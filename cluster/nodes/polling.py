"""The intervals at which commands poll while they wait for servers."""

# Short enough that users do not notice it, long enough that the load on the servers is negligible.
POLL_SECONDS = 0.05
# For polls that are work for every shard.
HEAVY_POLL_SECONDS = 0.1
