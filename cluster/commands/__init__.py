"""The command line has one file for each subcommand."""
