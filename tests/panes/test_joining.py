"""A join in columns says what the reference says, after every micro-batch."""

import pytest
from hypothesis import given

from examples import examples
from joined import ColumnarJoin, PlainJoin, Step, said, specs, steps
from millrace.model.duration import END_OF_TIME
from millrace.model.joining import JoinSpec


@pytest.mark.no_cover
@examples(400)
@given(specs(), steps())
def test_the_columns_say_what_the_reference_says(spec: JoinSpec, happening: list[Step]) -> None:
    reference, columns = PlainJoin(spec), ColumnarJoin(spec)
    at = (0, 0)
    for left, right, by in [*happening, ([], [], (END_OF_TIME, END_OF_TIME))]:
        at = min(at[0] + by[0], END_OF_TIME), min(at[1] + by[1], END_OF_TIME)
        assert said(columns.step(left, right, at)) == said(reference.step(left, right, at))
        assert columns.dropped == reference.dropped
    assert len(columns.state.left) == len(columns.state.right) == 0
