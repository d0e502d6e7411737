"""This room keeps what outlives the run of a script: its session and registrations, their streams, its timers."""
