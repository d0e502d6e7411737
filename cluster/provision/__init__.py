"""Sets a cluster up to answer questions, stores documents in it, inspects it, and adds shards."""
