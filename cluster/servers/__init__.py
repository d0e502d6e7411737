"""Runs servers on this machine: processes, ports and the state of a local cluster."""
