import dspy

from dspy_combee.tool_blocks import find_tool_blocks, keep_tool_block


def lookup(query: str) -> str:
    """Look a word up."""
    return query


def weather(city: str) -> str:
    """Say how the weather is."""
    return city


def test_the_block_of_an_agent_names_all_its_tools():
    agent = dspy.ReAct(dspy.Signature("question->answer", "Be kind."), tools=[lookup, weather])
    blocks = find_tool_blocks(agent)
    assert set(blocks) == {"react"}
    assert "Look a word up." in blocks["react"]
    assert "Say how the weather is." in blocks["react"]
    assert not blocks["react"].startswith("Be kind.")
    assert blocks["react"] in agent.react.signature.instructions


def test_a_program_without_tools_has_no_block():
    assert find_tool_blocks(dspy.ChainOfThought("question->answer")) == {}


def test_an_agent_inside_a_program_is_found_by_its_path():
    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.agent = dspy.ReAct("question->answer", tools=[lookup])

    assert set(find_tool_blocks(Program())) == {"agent.react"}


def test_the_block_is_added_once():
    block = "(1) lookup, a tool"
    once = keep_tool_block("Be brief. ", block)
    assert once == f"Be brief.\n\n{block}"
    assert keep_tool_block(once, block) == once
    assert keep_tool_block("Be brief.", None) == "Be brief."


def test_the_block_is_found_after_the_users_text_was_rewritten():
    agent = dspy.ReAct("question->answer", tools=[lookup])
    block = find_tool_blocks(agent)["react"]
    agent.react.signature = agent.react.signature.with_instructions(keep_tool_block("Something else.", block))
    assert "Look a word up." in find_tool_blocks(agent)["react"]
    assert "Something else." not in find_tool_blocks(agent)["react"]
