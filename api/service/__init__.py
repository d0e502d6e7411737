"""The state of the running service: its options, engine, metrics and readiness."""
