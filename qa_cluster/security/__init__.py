"""Protects passwords and connections: TLS, the ownership of files, and where passwords may appear."""
