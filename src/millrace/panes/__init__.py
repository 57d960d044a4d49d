"""The columnar engine from partials to panes: windows, triggers, sessions and retractions. It has no side effects."""
