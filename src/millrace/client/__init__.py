"""Reading views and sending records from Python."""
