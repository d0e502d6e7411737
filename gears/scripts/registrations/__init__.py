"""This room manages the sessions of scripts: registrations, streams of registrations, and timers."""
