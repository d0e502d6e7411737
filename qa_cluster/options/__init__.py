"""The options and arguments that clients and the service share. They need only a few packages, because the thin
client (`qa-cluster-client`) contains them.
"""
