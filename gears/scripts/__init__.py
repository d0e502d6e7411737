"""The scripts wing: the part of the worker that runs user scripts, with the interfaces of RedisGears and RedisAI."""
