"""The native index, compared with an oracle that scores every sentence."""
