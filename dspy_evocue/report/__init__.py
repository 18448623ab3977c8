"""Pictures and tables of call sites, edits and trials."""
