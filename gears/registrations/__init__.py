"""What stays when a script has ended: its session and registrations, streams that are read for them, its timers."""
