"""This room keeps sessions of scripts: their registrations, the streams of these, and timers."""
