"""`qa-cluster model`: train and export readers, and choose which of them answer. One file for each subcommand."""
