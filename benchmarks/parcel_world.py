"""The world of `combee_optimizers.py`: parcels whose gate a rule names for each mark, and two scripted models.

The task model applies every rule that its prompt states, or shows by a solved example, and guesses the gate otherwise.
The reflection model passes on the rules that it finds in its prompt, in whatever form is asked for, as far as it
attends to them. Neither knows which optimizer asks.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from dspy_combee.testing import lessons_reply

GATES = 5
TOWNS = ("Lyon", "Porto", "Graz", "Turku", "Bergen", "Split", "Ghent", "Brno")
RULE = re.compile(r"Parcels marked ([A-Z]{2}-\d\d) go to gate ([1-5])\.")
CASE = re.compile(r"A parcel of \d+ kg from \w+, marked ([A-Z]{2}-\d\d)\b")
SOLVED = re.compile(CASE.pattern + r"\W+(?:gate\W+)+([1-5])\b", re.IGNORECASE)
"""A parcel directly followed by its gate, as demos and data sets are shown."""
RECORD = re.compile(r"^\[(r\d+)\]\n(.*?)(?=^\[r\d+\]$|\Z)", re.DOTALL | re.MULTILINE)
SUMMARY_SENTENCES = 3
"""MIPROv2 asks for a summary of its data in two to three sentences."""


@dataclass(frozen=True)
class Task:
    """The rules and the examples that need them."""

    gate_of: dict[str, int]
    """The rules: mark to gate."""
    train: list[dspy.Example]
    """Two a rule; the first half and the second half have every rule once."""
    val: list[dspy.Example]
    test: list[dspy.Example]


class RouteParcel(dspy.Signature):
    """Name the gate that a parcel goes to, a number from 1 to 5."""

    parcel: str = dspy.InputField()
    gate: int = dspy.OutputField()


def make_task(rules: int, seed: int) -> Task:
    """Return a task with this many rules, whose marks and gates follow from the seed."""
    rng = random.Random(f"task {seed}")
    marks = [f"{one}{two}-{rng.randrange(10, 100)}" for one in "BDFHKLNPRT" for two in "CGJMQSVWXZ"]
    gate_of = {mark: rng.randrange(1, GATES + 1) for mark in rng.sample(marks, rules)}

    def deal() -> list[dspy.Example]:
        return [_example(mark, gate_of[mark], rng) for mark in rng.sample(list(gate_of), rules)]

    return Task(gate_of, deal() + deal(), deal(), deal() + deal())


def _example(mark: str, gate: int, rng: random.Random) -> dspy.Example:
    parcel = f"A parcel of {rng.randrange(1, 40)} kg from {rng.choice(TOWNS)}, marked {mark}"
    return dspy.Example(parcel=parcel, gate=gate).with_inputs("parcel")


def sentence(mark: str, gate: int | str) -> str:
    """Return a rule in words."""
    return f"Parcels marked {mark} go to gate {gate}."


class Metric:
    """Score the gate and state the rule in the feedback; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        """Score one run."""
        # GEPA asks again for the feedback on a run that it has scored: nothing new is scored then.
        if pred_name is None:
            with self._lock:
                self.calls += 1
        score = float(getattr(pred, "gate", None) == gold.gate)
        verdict = "Right." if score else "Wrong."
        (mark,) = CASE.findall(gold.parcel)
        return dspy.Prediction(score=score, feedback=f"{verdict} {sentence(mark, gold.gate)}")

    def score_only(self, gold: Any, pred: Any, trace: Any = None) -> float:
        """Score without feedback, for optimizers that take a number."""
        return float(self(gold, pred).score)


class Draws:
    """Random draws that depend on the prompt and on how often it was asked before, not on the order of threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def rng(self, prompt: str) -> random.Random:
        """Return the generator of one call."""
        with self._lock:
            self._asked[prompt] += 1
            return random.Random(f"{self._seed}/{self._asked[prompt]}/{prompt}")


def rules_in(prompt: str, *, with_examples: bool = False) -> dict[str, str]:
    """Return the rules that a prompt states, mark to gate, in order, and those that its solved examples show."""
    found = dict(RULE.findall(prompt))
    return dict(SOLVED.findall(prompt)) | found if with_examples else found


class TaskModel:
    """Applies what its prompt says, and guesses where it says nothing."""

    def __init__(self, seed: int) -> None:
        self._draws = Draws(seed)

    def __call__(self, prompt: str, _: int) -> str:
        """Answer one call."""
        asked = CASE.findall(prompt)[-1]
        gate = rules_in(prompt, with_examples=True).get(asked)
        return in_fields(gate=gate or str(self._draws.rng(prompt).randrange(1, GATES + 1)))


class ReflectionModel:
    """Passes on the rules that a prompt shows, in whatever form is asked for, as far as its attention goes.

    Args:
        capacity: Items that a call attends to.
        seed: For what is lost beyond that.
        is_brief: Whether a summary asked for in two to three sentences has three; otherwise it holds all that is seen.
    """

    def __init__(self, capacity: float, seed: int, *, is_brief: bool = True) -> None:
        self._capacity = capacity
        self._draws = Draws(seed)
        self._is_brief = is_brief
        self.unknown_forms: list[str] = []
        """Prompts that ask for something else than the forms known here."""

    def __call__(self, prompt: str, _: int) -> str:
        """Answer one call."""
        answers: dict[str, Callable[[str], str]] = {
            "lessons": self._lessons,
            "operations": lambda _: in_fields(operations="NONE"),
            "new_instruction": self._instruction,
            "key_insight": self._reflection,
            "curated lessons": self._curation,
            "merges": lambda _: in_fields(merges="[]", refuted="none"),
            "module_advice": self._advice,
            "observations": self._observations,
            "summary": self._summary,
            "program_description": lambda _: in_fields(program_description="It names the gate of a parcel."),
            "module_description": lambda _: in_fields(module_description="It names the gate."),
            "proposed_instruction": self._proposal,
        }
        form = form_of(prompt)
        if form not in answers:
            self.unknown_forms.append(prompt)
            return ""
        return answers[form](prompt)

    def _attended(self, prompt: str, *, with_examples: bool = False) -> dict[str, str]:
        """Return the rules of a prompt that survive the call."""
        shown = rules_in(prompt, with_examples=with_examples)
        chance = min(1.0, self._capacity / max(1, len(shown)))
        rng = self._draws.rng(prompt)
        return {mark: gate for mark, gate in shown.items() if rng.random() < chance}

    def _lessons(self, prompt: str) -> str:
        """Combee over GEPA, first level: a list of lessons with the ids of their records."""
        seen = self._attended(prompt)
        records = RECORD.findall(input_of(prompt, "records"))
        pairs = [(rid, mark, gate) for rid, body in records for mark, gate in RULE.findall(body)]
        return lessons_reply((rid, sentence(mark, gate)) for rid, mark, gate in pairs if mark in seen)

    def _instruction(self, prompt: str) -> str:
        """GEPA: a whole new instruction, in JSON."""
        return json.dumps({"new_instruction": instruction_of(self._attended(prompt))})

    def _reflection(self, prompt: str) -> str:
        """ACE, one run: the rule of its judgement."""
        seen = self._attended(prompt)
        rules = [sentence(mark, gate) for mark, gate in RULE.findall(input_of(prompt, "judgement")) if mark in seen]
        insight = " ".join(dict.fromkeys(rules)) or "Look at the mark."
        return in_fields(what_went_wrong="the gate", cause="?", correct_approach="?", key_insight=insight, votes="[]")

    def _curation(self, prompt: str) -> str:
        """ACE, curation: one addition for each rule of the reflections that the playbook lacks."""
        seen, known = self._attended(prompt), rules_in(input_of(prompt, "playbook"))
        cited: dict[str, list[str]] = {}
        for rid, body in RECORD.findall(input_of(prompt, "reflections")):
            for mark in rules_in(body):
                cited.setdefault(mark, []).append(rid)
        return lessons_reply(
            (", ".join(ids), sentence(mark, seen[mark]))
            for mark, ids in cited.items()
            if mark in seen and mark not in known
        )

    def _advice(self, prompt: str) -> str:
        """SIMBA: advice from the rule that the reward information of its one example states."""
        seen = self._attended(prompt)
        told = rules_in(input_of(prompt, "worse_reward_info") + input_of(prompt, "better_reward_info"))
        advice = " ".join(sentence(mark, gate) for mark, gate in told.items() if mark in seen) or "Look at the mark."
        return in_fields(discussion="the gate was wrong", module_advice=json.dumps({"self": advice}))

    def _observations(self, prompt: str) -> str:
        """MIPROv2: observations on ten labelled examples, each of which is as good as its rule here."""
        seen = self._attended(prompt, with_examples=True)
        known = rules_in(input_of(prompt, "prior_observations"))
        new = [sentence(mark, gate) for mark, gate in seen.items() if mark not in known]
        return in_fields(observations=" ".join(new) + " " if new else "COMPLETE")

    def _summary(self, prompt: str) -> str:
        """MIPROv2: the observations in short."""
        sentences = [sentence(mark, gate) for mark, gate in self._attended(prompt).items()]
        return in_fields(summary=" ".join(sentences[:SUMMARY_SENTENCES] if self._is_brief else sentences))

    def _proposal(self, prompt: str) -> str:
        """MIPROv2: an instruction from the summary and up to three solved examples."""
        return in_fields(proposed_instruction=instruction_of(self._attended(prompt, with_examples=True)))


def in_fields(**fields: str) -> str:
    """Return a reply in DSPy's chat format."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in {**fields, "completed": ""}.items())


def instruction_of(rules: dict[str, str]) -> str:
    return "\n".join(("Name the gate of the parcel.", *(sentence(mark, gate) for mark, gate in rules.items())))


def form_of(prompt: str) -> str:
    """Return which form of answer a prompt asks for: the first output field that matters here."""
    asked = re.findall(r"`(?:\[\[ ## )?(\w+)(?: ## \]\])?`", prompt.rpartition("Respond with")[2])
    form = next(
        (name for name in asked if name not in ("what_went_wrong", "cause", "correct_approach", "discussion")), ""
    )
    return "curated lessons" if form == "lessons" and "[[ ## reflections ## ]]" in prompt else form


def input_of(prompt: str, name: str) -> str:
    """Return the value of an input field of a prompt; empty when there is none."""
    head = f"[[ ## {name} ## ]]\n"
    value = prompt.rpartition(head)[2] if head in prompt else ""
    return re.split(r"^\[\[ ## ", value, maxsplit=1, flags=re.MULTILINE)[0]
