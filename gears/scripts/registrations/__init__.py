"""This room keeps the sessions of scripts: their registrations, the streams that these read, and timers."""
