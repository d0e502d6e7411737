"""This room is the interface for scripts: the builder, the API and `redisAI`. The runtime has the worker's parts."""
