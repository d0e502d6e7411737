"""This room does the jobs of users' scripts: they run, register functions, and their functions are called."""
