"""This room prints what users see at a terminal: steps, results, progress and tables."""
