"""`qa-cluster keys ..`: makes, lists and revokes the API keys of the REST service."""
