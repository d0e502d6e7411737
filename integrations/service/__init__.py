"""Access to a qa-cluster service for the adapters of frameworks: its clients, and the passages that it returns."""
