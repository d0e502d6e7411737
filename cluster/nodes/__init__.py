"""This room handles a cluster from outside: its nodes, their slots, and commands to all of them."""
