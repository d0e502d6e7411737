"""`qa-cluster documents ..`: what is stored: listed, counted, shown, deleted."""
