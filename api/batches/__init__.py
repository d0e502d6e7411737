"""Runs batches: an rq worker answers the requests in the lines of a file with the rights of the batch's API key."""
