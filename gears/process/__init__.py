"""The worker process: it puts its parts together, takes jobs of the module, carries them out and reports them."""
