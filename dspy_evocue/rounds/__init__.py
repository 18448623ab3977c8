"""The stages of EvoCUE's round, one file a stage; `round.py` says in which order they come."""
