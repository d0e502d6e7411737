"""How often a command looks again while it waits for servers."""

# Soon enough that nobody notices the wait, seldom enough that the servers do not notice the question.
POLL_SECONDS = 0.05
# Where each look is work for every shard.
HEAVY_POLL_SECONDS = 0.1
