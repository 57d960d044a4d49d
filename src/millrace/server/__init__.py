"""HTTP: records in, answers out."""
