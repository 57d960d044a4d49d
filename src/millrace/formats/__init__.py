"""JSON, CSV and SQL expressions as they are read and written in DuckDB."""
