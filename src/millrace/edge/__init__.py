"""The edge: the row-wise part of a stage, which turns rows into partials where the rows are read."""
