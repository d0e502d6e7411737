"""What a person at a terminal sees: steps, results, progress and tables."""
