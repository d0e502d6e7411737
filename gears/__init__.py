"""This package runs inside the worker process of a shard: functions, models and scripts."""
