"""The native index against an oracle that scores everything."""
