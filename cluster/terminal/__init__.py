"""Output to a terminal: steps, results, progress and tables; and subcommands that are imported on first use."""
