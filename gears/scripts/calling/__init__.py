"""This room calls users' functions: on threads of their own, and their coroutines on an event loop of their own.

It knows nothing of the shard. The worker's own event loop hands out the calls and never waits for one.
"""
