"""Fetches the pages of a web site for `qa-cluster ingest`."""
