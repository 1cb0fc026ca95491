"""Links of the pages to files outside docs/, for MkDocs: on the site they lead to the repository."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    depth = page.file.src_uri.count("/") + 1  # "../" this often leaves docs/

    def to_repository(link: re.Match[str]) -> str:
        up, path, anchor = link.groups()
        if len(up) // 3 < depth:
            return link.group()
        kind = "blob" if "." in path.rsplit("/", 1)[-1] else "tree"
        return f"]({config.repo_url}/{kind}/main/{path}{anchor or ''})"

    return _OUTSIDE.sub(to_repository, markdown)
