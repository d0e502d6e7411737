"""Saves the contents of a cluster in a folder, and restores them in a cluster."""
