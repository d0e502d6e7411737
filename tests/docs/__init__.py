"""The documents as their readers use them: tests run every block of README and docs that has no mark `not run`."""
