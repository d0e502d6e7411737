"""Labelled examples to train on: read from files, held out, joined."""
