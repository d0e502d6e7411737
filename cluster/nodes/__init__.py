"""This room sees a cluster from outside: its nodes, their slots, and commands to all of them."""
