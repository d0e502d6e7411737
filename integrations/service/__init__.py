"""Lets the adapters of frameworks use a qa-cluster service: opens clients, and converts results to passages."""
