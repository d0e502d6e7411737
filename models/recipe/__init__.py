"""Makes a reader from this repository and PyPI packages, in steps that can be resumed."""
