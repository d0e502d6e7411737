"""Models and scripts: loading, batching, devices and graphs."""
