"""The Lua scripts that change keys atomically, and their calls."""
