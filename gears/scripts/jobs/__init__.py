"""This room handles the jobs of user scripts: it runs scripts, and registers and calls their functions."""
