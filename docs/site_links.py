"""Links of the site, for MkDocs: files outside docs/ are in the repository, and no page asks another server for anything."""

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


def on_post_page(output: str, **_: Any) -> str:
    """Leave out the mark of the repository's link that makes the theme ask GitHub for its numbers of stars and forks."""
    return output.replace(' data-md-component="source"', "")
