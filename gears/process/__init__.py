"""The worker process: jobs are taken, carried out and reported."""
