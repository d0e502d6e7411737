"""This room loads the readers of a shard from keys, keeps copies of them, warms them and reports them."""
