"""The worker process: it assembles its parts, takes jobs from the module, does them and reports them."""
