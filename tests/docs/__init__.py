"""The documents as a reader uses them: tests run every block of README and docs, or a mark gives the reason why not."""
