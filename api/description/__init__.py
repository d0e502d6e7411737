"""This room says what requests may hold: the tables that validate them, and the OpenAPI made from those tables."""
