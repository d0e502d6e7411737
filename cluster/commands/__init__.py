"""The subcommands of `qa-cluster`, one file each."""
