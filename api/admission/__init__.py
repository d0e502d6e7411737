"""This room decides who may use which route, from which host, and what the audit log says of it."""
