"""This room has the routes of what editors and readers add to a collection."""
