"""What a predictor is called with while an edit acts on it."""

import dspy

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, attach
from dspy_evocue.testing import chat_reply


def test_the_longer_signature_is_made_once_and_signatures_that_compare_equal_are_told_apart():
    class Longer(dspy.Signature):
        """Instructions."""

        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    program = attach(dspy.Predict(Longer), InstructionEdit(at=CallSite("*", "self"), text="Lesson."))
    used = []

    class Looking(dspy.ChatAdapter):
        def format(self, signature, demos, inputs):
            used.append(signature)
            return super().format(signature, demos, inputs)

    with dspy.context(lm=scripted_lm(lambda prompt, number: chat_reply(answer="a")), adapter=Looking()):
        program(question="q")
        program(question="q")
        program.signature = Longer.with_instructions(Longer.instructions)
        program(question="q")
    assert used[0] is used[1]
    assert used[2] is not used[0]
