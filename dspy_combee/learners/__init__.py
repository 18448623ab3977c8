"""The family of prompt learners."""
