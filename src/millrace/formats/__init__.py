"""The formats JSON and CSV, and SQL expressions for DuckDB."""
