"""mkdocs hook: ```math blocks as MathML, which browsers draw by themselves.

KaTeX and MathJax would need half a megabyte of somebody's script and fonts in our repository, or a request
to another host from every page. GitHub draws the same blocks when it shows the files.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^```math\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every formula."""
    return _BLOCK.sub(lambda found: mathml(found[1]), markdown)


def mathml(formula: str) -> str:
    """A block of HTML that Markdown leaves alone."""
    return f'<div class="formula">{convert(" ".join(formula.split()), display="block")}</div>\n'
