"""This room calls user functions on threads, and runs their coroutines on a separate event loop.

The room does not depend on the shard. The worker's own event loop starts calls, but never waits for a call.
"""
