"""Millrace at work: charts of a made-up music service, live; and the worked example of the Dataflow paper."""
