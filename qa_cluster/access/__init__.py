"""API keys of the REST service: what one may do, the lists of them in the cluster, their limits, and the audit log."""
