"""What scripts use: the builder, the API, `redisAI`, and the one place where all of these find the worker's parts."""
