"""What runs inside a shard worker process."""
