"""The process that extracts text from files, with limits of time and memory."""
