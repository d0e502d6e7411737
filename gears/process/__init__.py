"""The worker process: assembles its parts, fetches jobs from the module, runs them and reports the results."""
