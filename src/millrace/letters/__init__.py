"""Dead letters of pipelines: stored, listed, fixed and sent again."""
