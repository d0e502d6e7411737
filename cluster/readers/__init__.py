"""Stores, warms, lists and measures readers on a cluster."""
