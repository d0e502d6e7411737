"""This room calls user functions on threads, and runs their coroutines on a separate event loop."""
