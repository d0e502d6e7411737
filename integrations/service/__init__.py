"""A qa-cluster service as the adapters of frameworks use it: its clients, and what it finds."""
