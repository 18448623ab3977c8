"""The family of executors."""
