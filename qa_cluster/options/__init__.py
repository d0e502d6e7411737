"""The options and arguments that clients and the service share. They need few packages, for the thin client."""
