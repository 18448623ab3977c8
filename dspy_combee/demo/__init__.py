"""The demo's problem: support messages to routing codes that only instruction text can teach."""

from dspy_combee.demo.messages import load_messages, routing_instruction, routing_metric, routing_program
from dspy_combee.demo.rules import ROUTING_RULES, RoutingRule, keeps_rule

__all__ = [
    "ROUTING_RULES",
    "RoutingRule",
    "keeps_rule",
    "load_messages",
    "routing_instruction",
    "routing_metric",
    "routing_program",
]
