"""Runs pipelines for the command line and for Python: loads them, runs them on Spark, and displays the progress."""
