"""Operates clusters: servers, topology and the command line."""
