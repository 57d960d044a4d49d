"""The demos: live charts of a simulated music service, and the worked example of the Dataflow paper."""
