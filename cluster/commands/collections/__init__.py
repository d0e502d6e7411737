"""`qa-cluster collections ..`: lists, creates, counts and deletes collections of documents."""
