"""The worker process: it assembles its parts, takes jobs from the module, carries them out and reports them."""
