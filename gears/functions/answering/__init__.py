"""This room answers questions: it ranks sentences and reads them."""
