"""Sources: replayable input, read by positions."""
