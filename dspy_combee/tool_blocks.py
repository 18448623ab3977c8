"""Find the part of an instruction that describes an agent's tools, and keep it in every rewritten instruction.

`dspy.ReAct` and its relatives write their list of tools into the instruction of a predictor. A learner that rewrites
the instruction rewrites the list with it, and the agent no longer knows its tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dspy


def find_tool_blocks(program: dspy.Module) -> dict[str, str]:
    """Return the tool block of each predictor that has one, by the name that `named_predictors()` gives it.

    The block is what the agent's constructor added to the user's own instruction; where that cannot be told apart any
    more, it is everything from the first tool's line to the end.
    """
    blocks: dict[str, str] = {}
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    for _, module in program.named_sub_modules():
        tools = [str(tool) for tool in _tools_of(module)]
        for predictor in vars(module).values() if tools else ():
            name = names.get(id(predictor))
            if name is not None:
                block = _block(predictor.signature.instructions, tools, _own_instructions(module))
                if block:
                    blocks[name] = block
    return blocks


def keep_tool_block(text: str, block: str | None) -> str:
    """Return the text with the tool block at its end, unless the text holds the block word for word."""
    return text if not block or block in text else f"{text.rstrip()}\n\n{block}"


def _tools_of(module: Any) -> Iterable[Any]:
    tools = getattr(module, "tools", None)
    if isinstance(tools, Mapping):
        return tools.values()
    return tools if isinstance(tools, list | tuple) else ()


def _own_instructions(module: Any) -> str:
    return getattr(getattr(module, "signature", None), "instructions", "") or ""


def _block(instructions: str, tools: list[str], own: str) -> str:
    positions = [instructions.find(tool) for tool in tools if tool in instructions]
    if not positions:
        return ""
    if own and instructions.startswith(own):
        return instructions[len(own) :].strip()
    line_start = instructions.rfind("\n", 0, min(positions)) + 1
    return instructions[line_start:].strip()
