"""The HTTP server: appends records, serves views."""
