"""Makes a reader from this repository and PyPI packages alone, in steps that go on where they stopped."""
