"""qa-cluster: question answering inside a Redis or Valkey Cluster."""

__version__ = "0.1.0"
