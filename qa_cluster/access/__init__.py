"""API keys of the REST service: their rights, their storage in the cluster, their limits, and the audit log."""
