"""Combee: learn from hundreds of traces at once, without the lessons turning to mush."""
