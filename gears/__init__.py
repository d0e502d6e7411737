"""The worker process of a shard: functions, models and scripts."""
