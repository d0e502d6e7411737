"""`qa-cluster keys ..`: makes, imports, lists and revokes the API keys of the REST service."""
