"""HTML as text: everything that comes from a run is escaped here and nowhere else. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NewType

Html = NewType("Html", str)
"""Text that a browser may read as HTML. Plain text becomes it by `text` only, so the type checker finds a leak."""

_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def text(value: object) -> Html:
    """Return a value as HTML that shows its text character by character and can open no tag.

    What no page can hold (control characters, lone surrogates) becomes the replacement character.
    """
    return Html(html.escape(_UNSHOWABLE.sub("\ufffd", str(value))))


def join(parts: Iterable[Html]) -> Html:
    """Return the parts one after another."""
    return Html("\n".join(part for part in parts if part))


def element(name: str, *content: Html, classes: str = "", **attributes: str | float) -> Html:
    """Return one element.

    Args:
        name: The tag.
        content: What stands inside, already HTML.
        classes: Its classes, separated by spaces.
        attributes: Further attributes; an underscore in a name becomes a hyphen.
    """
    given = {"class": classes, **attributes} if classes else attributes
    spelled = "".join(f' {key.replace("_", "-")}="{text(value)}"' for key, value in given.items())
    return Html(f"<{name}{spelled}>{''.join(content)}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[str | Html]], *, numeric: Iterable[int] = ()) -> Html:
    """Return a table in a box of its own that scrolls when it is wider than the page.

    Args:
        head: The column titles, plain text.
        rows: The cells, already HTML, one sequence a row.
        numeric: Which columns hold numbers, from 0; they are set flush right.
    """
    right = frozenset(numeric)
    titles = [_cell("th", text(title), index in right) for index, title in enumerate(head)]
    lines = [
        element("tr", *(_cell("td", Html(cell), index in right) for index, cell in enumerate(row))) for row in rows
    ]
    body = element("table", element("thead", element("tr", *titles)), element("tbody", *lines))
    return element("div", body, classes="wide")


def unfold(summary: Html, *content: Html, is_open: bool = False) -> Html:
    """Return a part that a click on its summary opens."""
    shown = element("details", element("summary", summary), *content)
    return Html(shown.replace("<details>", "<details open>", 1)) if is_open else shown


def _cell(name: str, content: Html, is_number: bool) -> Html:
    return element(name, content, classes="number" if is_number else "")
