"""Notebooks as pages of the site, for MkDocs: text unchanged, code as blocks, and the outputs that are stored with them."""

import json
import re
from html import escape
from pathlib import PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Replace each notebook by a page in Markdown."""
    for file in [*files]:
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            page = str(PurePosixPath(file.src_uri).with_suffix(".md"))
            files.append(File.generated(config, page, content=as_markdown(json.loads(file.content_string))))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to notebooks to their pages."""
    return re.sub(r"\]\(([^):]+)\.ipynb", r"](\1.md", markdown)


def as_markdown(notebook: dict[str, Any]) -> str:
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        parts += [output_text(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def output_text(output: dict[str, Any]) -> str:
    """Return an output as HTML without blank lines, which would end it in Markdown."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    kind = next(kind for kind in ("text/html", "image/jpeg", "image/png", "text/plain") if kind in data)
    content = "".join(data[kind])
    if kind == "text/html":
        content = re.sub(r"<style.*?</style>|\n\s*", "", content, flags=re.S)
    elif kind == "text/plain":
        content = f"<pre>{escape(content.rstrip()).replace(chr(10), '&#10;')}</pre>"
    else:
        content = f'<img src="data:{kind};base64,{content.strip()}" alt="images of the cell above">'
    return f'<div class="output">{content}</div>'
