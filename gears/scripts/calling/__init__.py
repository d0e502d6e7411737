"""This room calls users' functions on threads, and runs their coroutines on a separate event loop.

It does not depend on the shard. The worker's own event loop starts the calls, but never waits for one.
"""
