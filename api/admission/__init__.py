"""Decides which client may use which route, checks the host of a request, and writes the audit log."""
