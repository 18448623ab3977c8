"""What every prompt learner and every aggregation must do, as tests that a user's own can inherit.

Subclass a contract in a test module, give what it asks for, and run your test runner: the methods named `test_...` use
plain asserts and no test framework.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from dspy_combee.aggregation.base import Aggregation, AggregationJob
from dspy_combee.aggregation.scan import Scan
from dspy_combee.learners.base import Entry, PromptLearner, Reflection, TextUpdate, Trajectory
from dspy_combee.program_state import state_of
from dspy_combee.rounds import ExampleSource, FixedBatchSize, run_rounds
from dspy_combee.runtime.execution.threads import ThreadExecutor


class PromptLearnerContract:
    """The promises of `PromptLearner`. Give a learner, a program and at least four examples that it can learn from."""

    def make_learner(self) -> PromptLearner:
        """Return the learner, with models that answer."""
        raise NotImplementedError

    def make_program(self) -> Any:
        """Return a fresh program."""
        raise NotImplementedError

    def make_examples(self) -> Sequence[Any]:
        """Return at least four examples on which the fresh program fails."""
        raise NotImplementedError

    def _reflections(self, learner: PromptLearner, program: Any) -> list[Reflection]:
        found: list[Reflection] = []
        for number, example in enumerate(self.make_examples()):
            found.extend(learner.reflect(program, learner.generate(program, example, f"r{number}")))
        return [reflection for reflection in found if reflection.component == found[0].component]

    def test_it_has_the_four_steps(self) -> None:
        """The class has the methods of the protocol."""
        assert isinstance(self.make_learner(), PromptLearner)

    def test_generate_returns_the_record_it_was_asked_for(self) -> None:
        """A trajectory carries its record id and example, and a score where there is a prediction."""
        example = self.make_examples()[0]
        trajectory = self.make_learner().generate(self.make_program(), example, "r7")
        assert isinstance(trajectory, Trajectory)
        assert (trajectory.record_id, trajectory.example) == ("r7", example)
        assert trajectory.error is not None or trajectory.prediction is not None

    def test_generate_gives_a_trajectory_with_an_error_for_a_program_that_raises(self) -> None:
        """A program that raises is a record and no exception."""
        program = self.make_program()

        def fail(**_: Any) -> None:
            raise ValueError("broken program")

        program.forward = fail
        trajectory = self.make_learner().generate(program, self.make_examples()[0], "r1")
        assert trajectory.error is not None
        assert "broken program" in trajectory.error

    def test_reflections_cite_their_record(self) -> None:
        """Each reflection is about the one record that it was made of."""
        learner, program = self.make_learner(), self.make_program()
        trajectory = learner.generate(program, self.make_examples()[0], "r3")
        reflections = learner.reflect(program, trajectory)
        assert reflections
        assert all(reflection.record_ids == ("r3",) for reflection in reflections)

    def test_curate_serves_both_levels_and_invents_no_record(self) -> None:
        """Updates can be curated again, and cite only records that were shown."""
        learner, program = self.make_learner(), self.make_program()
        reflections = self._reflections(learner, program)
        half = len(reflections) // 2
        updates = [learner.curate(program, part) for part in (reflections[:half], reflections[half:])]
        upper = [Reflection(u.render(), (), reflections[0].component, update=u) for u in updates]
        final = learner.curate(program, upper)
        shown = {record_id for reflection in reflections for record_id in reflection.record_ids}
        for update in (*updates, final):
            assert update.entries
            assert {record_id for entry in update.entries for record_id in entry.record_ids} <= shown
            assert update.render().strip()

    def test_update_changes_a_copy(self) -> None:
        """The given program stays as it is; the copy differs."""
        learner, program = self.make_learner(), self.make_program()
        before = json.dumps(state_of(program), default=str)
        changed = learner.update(program, learner.curate(program, self._reflections(learner, program)))
        assert json.dumps(state_of(program), default=str) == before
        assert json.dumps(state_of(changed), default=str) != before

    def test_it_learns_under_a_scan(self) -> None:
        """A whole run ends well and leaves a changed program."""
        examples, program = self.make_examples(), self.make_program()
        result = run_rounds(
            self.make_learner(),
            program,
            ExampleSource(examples),
            aggregation=Scan(),
            executor=ThreadExecutor(4),
            batch_sizes=FixedBatchSize(len(examples)),
        )
        assert result.stop_reason == "completed"
        assert state_of(result.program) != state_of(program)


class AggregationContract:
    """The promises of `Aggregation`. Give an aggregation whose own calls, if it makes any, are answered."""

    def make_aggregation(self) -> Aggregation:
        """Return the aggregation."""
        raise NotImplementedError

    def _aggregate(self, jobs: Sequence[AggregationJob]) -> list[Any]:
        return self.make_aggregation().aggregate(jobs, executor=ThreadExecutor(4), rng=random.Random(0))

    def test_one_result_a_job_in_order(self) -> None:
        """Results come back by job, also for one without reflections."""
        results = self._aggregate([_job("first", 9), _job("empty", 0), _job("last", 1)])
        assert [result.component for result in results] == ["first", "empty", "last"]
        assert [result.update is not None for result in results] == [True, False, True]

    def test_it_makes_no_more_calls_than_it_announces(self) -> None:
        """`calls_for` is an upper bound where no call fails."""
        for count in (0, 1, 2, 9, 30):
            (result,) = self._aggregate([_job("self", count)])
            assert len(result.calls) <= self.make_aggregation().calls_for(count)

    def test_every_record_is_cited_or_reported(self) -> None:
        """No record disappears without a word."""
        (result,) = self._aggregate([_job("self", 12)])
        cited = {record_id for entry in result.update.entries for record_id in entry.record_ids}
        assert cited | set(result.uncited) == {f"r{number}" for number in range(12)}

    def test_failing_calls_are_recorded_and_never_raised(self) -> None:
        """A job whose calls all fail has no update, and the others are as they would be without it."""
        failed, worked = self._aggregate([_job("broken", 9, fails=True), _job("self", 9)])
        assert failed.update is None
        assert set(failed.uncited) == {f"r{number}" for number in range(9)}
        assert any(call.error for call in failed.calls)
        assert worked.update is not None

    def test_the_same_seed_shows_the_same_reflections(self) -> None:
        """Nothing but `rng` decides who meets whom."""
        runs: list[list[tuple[str, ...]]] = []
        for _ in range(2):
            shown: list[tuple[str, ...]] = []
            self._aggregate([_job("self", 12, shown=shown)])
            runs.append(sorted(shown))
        assert runs[0] == runs[1]


def _job(
    component: str, count: int, *, fails: bool = False, shown: list[tuple[str, ...]] | None = None
) -> AggregationJob:
    def curate(reflections: Sequence[Reflection]) -> TextUpdate:
        if fails:
            raise ValueError("a call that fails")
        if shown is not None:
            shown.append(tuple(reflection.text for reflection in reflections))
        if reflections[0].update is not None:
            return TextUpdate(tuple(entry for r in reflections for entry in r.update.entries))
        return TextUpdate(tuple(Entry(reflection.text, reflection.record_ids) for reflection in reflections))

    reflections = tuple(Reflection(f"lesson {number}", (f"r{number}",), component) for number in range(count))
    return AggregationJob(component, reflections, curate)
