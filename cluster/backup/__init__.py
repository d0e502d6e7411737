"""This room saves what a cluster holds in a folder, and stores it in a cluster again."""
