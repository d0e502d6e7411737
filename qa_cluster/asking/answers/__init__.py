"""From a checked question to its answer: single flight, caches, ranking and reading, assembly."""
