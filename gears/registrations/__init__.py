"""What stays after a script: sessions, registrations, streams and timers."""
