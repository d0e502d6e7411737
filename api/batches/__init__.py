"""Runs batches: a worker of rq answers the requests in the lines of a file with the rights of the batch's API key."""
