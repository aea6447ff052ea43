"""Hooks of the documentation site: links to files outside docs/ become plain text."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files that exist in the repository but not in the site by their text.

    Args:
        markdown: Text of a page.
        page: The page; `page.file.src_uri` is its path below docs/.

    Returns:
        The text for the site. Other broken links stay, so that the strict build reports them.
    """
    folder = (DOCS / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2].partition("#")[0]).resolve()
        is_outside = target.exists() and not target.is_relative_to(DOCS)
        return link[1] if is_outside else link[0]

    return re.sub(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]*)\)", replace, markdown)
