"""`qa-cluster model`: trains and exports readers, and chooses which of them answer. One file for each subcommand."""
