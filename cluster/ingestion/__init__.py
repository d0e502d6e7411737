"""`qa-cluster ingest`: reads files, stores their documents, deletes documents whose files no longer exist, and
reports.
"""
