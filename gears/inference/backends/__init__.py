"""The runtimes that run a model, behind one interface."""
