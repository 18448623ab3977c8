"""The family of aggregations."""
