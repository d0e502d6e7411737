"""From a checkpoint to a reader's files, and the report on them."""
