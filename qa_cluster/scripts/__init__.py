"""The Lua scripts that change keys atomically, and the classes that describe their calls."""
