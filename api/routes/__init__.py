"""This room has the routes, one file for each kind of thing."""
