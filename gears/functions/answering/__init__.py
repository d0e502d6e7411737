"""This room ranks and reads: it leads from a question to answers."""
