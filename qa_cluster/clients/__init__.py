"""The clients: of the cluster itself, and of the REST service. `qa_cluster.client` has their public names."""
