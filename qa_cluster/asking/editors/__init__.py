"""What editors and users add to a collection: pins, synonyms, feedback and unanswered questions."""
