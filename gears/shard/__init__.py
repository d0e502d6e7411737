"""This room connects the worker to its shard and to other workers, and has the errors and the memory limit.

It imports no other folder of `gears/`.
"""
