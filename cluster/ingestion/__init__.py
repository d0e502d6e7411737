"""`qa-cluster ingest`: reads files, stores their documents, deletes what is gone, and reports."""
