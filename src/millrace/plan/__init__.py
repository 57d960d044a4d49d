"""What will run: a pipeline compiled to a frozen value that hosts, checkpoints and `explain` read."""
