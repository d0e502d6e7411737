"""A cluster seen from outside: its nodes, their slots, and commands to all of them."""
