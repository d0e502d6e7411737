"""Describes requests and responses: the tables that validate fields, and the OpenAPI description made from them."""
