"""This room does the jobs of users' scripts: it runs scripts, registers functions and calls them."""
