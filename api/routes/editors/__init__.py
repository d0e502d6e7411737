"""Routes for what editors and readers add to a collection: pins, synonyms, feedback and unanswered questions."""
