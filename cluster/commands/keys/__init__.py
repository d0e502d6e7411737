"""`qa-cluster keys ..`: creates, imports, lists and revokes the API keys of the REST service."""
