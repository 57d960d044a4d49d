"""Stored views: the rows of each view and its recent changes by version, in a database that is open to SQL."""
