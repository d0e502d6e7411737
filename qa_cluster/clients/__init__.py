"""The clients of the cluster and of the REST service. `qa_cluster.client` has their public names."""
