"""This room makes a cluster answer questions, and lets it grow."""
