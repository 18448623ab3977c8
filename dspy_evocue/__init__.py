"""EvoCUE: learn at which call site of a DSPy program a lesson acts, with evidence that it helped there."""
