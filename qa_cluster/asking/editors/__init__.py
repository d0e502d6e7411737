"""This room has what editors and readers add to a collection: pins, synonyms, feedback, unanswered questions."""
