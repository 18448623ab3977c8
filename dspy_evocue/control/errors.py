"""What can go wrong with an explicit controller; wrong arguments stay `ValueError` and `TypeError`."""

from __future__ import annotations


class ControlError(Exception):
    """Base of everything that a controller raises on its own account."""


class GraphError(ControlError, ValueError):
    """A graph that cannot be run: a missing node, an edge that nothing can take, an operation that lacks its draft."""


class SkillError(ControlError, ValueError):
    """A skill that the checker refuses; the message holds its problems, one sentence each."""


class DraftStateError(ControlError):
    """A run reached an operation in a draft state that the operation does not accept."""


class RoutingError(ControlError):
    """A run came to a node that no edge leaves in the state it is in."""


class WorldError(ControlError):
    """A world was asked for something that it cannot do."""
