"""Keeps passwords and connections to oneself: TLS, whose a file is, and where passwords stand and do not."""
