"""The documents as a reader uses them: every block of README and docs is run, or says why not."""
