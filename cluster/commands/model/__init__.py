"""`qa-cluster model ..`: trains, exports, loads and lists readers, and sets the default reader."""
