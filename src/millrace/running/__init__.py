"""Running pipelines as the command line does: from a file, into a store, shown to a person."""
