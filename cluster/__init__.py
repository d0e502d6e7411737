"""This package operates clusters: servers, topology and the command line."""
