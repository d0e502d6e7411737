"""`qa-cluster documents ..`: lists, counts, shows and deletes stored documents."""
