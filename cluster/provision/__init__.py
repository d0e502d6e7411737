"""What makes a cluster answer questions, and what grows it."""
