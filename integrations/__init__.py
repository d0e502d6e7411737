"""Adapters to other systems. Each folder is one adapter, an optional extra, and imports only the core and itself."""
