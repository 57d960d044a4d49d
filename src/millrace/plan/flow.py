"""The flow of a pipeline as a graph, for programs that draw it."""

from typing import Any

from millrace.model.explain import Step, steps
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import sink_id, view_id


def flow_of(pipeline: Pipeline) -> dict[str, Any]:
    """The steps of a pipeline and the lines between them, as JSON values.

    A step has a verb, a detail and, if it is a source or an output, the name under which progress reports it. A step
    that several outputs share is there once.
    """
    numbers: dict[Step, int] = {}
    lines: list[list[int]] = []

    def number(step: Step) -> int:
        if step not in numbers:
            inputs = [number(each) for each in step.inputs]
            numbers[step] = len(numbers)
            lines.extend([each, numbers[step]] for each in inputs)
        return numbers[step]

    outputs = [*map(view_id, pipeline.views), *(sink_id(each.sink) for each in pipeline.sinks)]
    last = {number(step): output for step, output in zip(steps(pipeline), outputs, strict=True)}
    nodes = [
        {"verb": step.verb, "detail": step.detail, "source": step.source, "output": last.get(place)}
        for step, place in numbers.items()
    ]
    return {"steps": nodes, "lines": lines}
