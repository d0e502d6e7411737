"""This room stores, warms, lists and measures readers on a cluster."""
