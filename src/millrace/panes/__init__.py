"""Partial aggregates to panes: windows, triggers, sessions and retractions, in columns. Pure."""
