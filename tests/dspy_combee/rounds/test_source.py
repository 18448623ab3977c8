"""Where the records of a run come from: a stream of traces is read once, and holds trajectories only."""

import pytest

from dspy_combee.learners.base import Trajectory
from dspy_combee.rounds import TraceSource


def test_rows_that_are_no_trajectories_are_refused_where_they_are_read():
    source = TraceSource([Trajectory("x", {}), {"question": "q"}])
    assert len(source.take(0, 1).items) == 1
    with pytest.raises(TypeError, match="must be Trajectory objects, got dict; read rows by TraceReader"):
        source.take(1, 1)


def test_a_stream_is_read_once():
    source = TraceSource(Trajectory(f"x{number}", {}) for number in range(3))
    source.take(0, 2)
    with pytest.raises(ValueError, match="position must be at least 2, got 0"):
        source.take(0, 1)
