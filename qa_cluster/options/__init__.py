"""The options and arguments that clients share with the service, light enough for the thin client."""
