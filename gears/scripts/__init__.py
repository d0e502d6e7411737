"""This wing runs users' scripts: it has the interfaces of RedisGears and RedisAI. The path of a question avoids it."""
