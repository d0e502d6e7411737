"""This room calls users' functions on threads, and their coroutines on a separate event loop.

It does not know the shard. The worker's own event loop hands out the calls and never waits for a call.
"""
