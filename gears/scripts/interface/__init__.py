"""This room is the interface for scripts: the builder, the API and `redisAI`. `runtime` has the worker's parts."""
