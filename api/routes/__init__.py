"""The routes of the service, with one file for each kind of resource."""
