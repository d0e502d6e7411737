"""This room keeps what stays when a script has ended: its session and registrations, their streams, its timers."""
