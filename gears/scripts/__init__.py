"""The scripts wing: the part of the worker that runs users' scripts, with the interfaces of RedisGears and RedisAI.

Questions are answered without this code.
"""
