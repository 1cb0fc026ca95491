"""The documentation: links of every page lead somewhere, and the site builds without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = []
    for target, anchor in LINK.findall(CODE.sub("", page.read_text())):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(f"{target}#{anchor}")
    assert not dead


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation, where a warning is an error, and return its folder."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return folder


def page_text(page: Path) -> str:
    """Return the text of a page, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())


@pytest.mark.slow
def test_the_site_has_docstrings_and_asks_no_other_site_for_anything(site: Path) -> None:
    page = (site / "api.html").read_text()
    assert "How images are augmented and normalized" in page  # the docstring of train
    assert not re.search(r'(src|<link[^>]*href)="https?://(?!github.com/manyeyes)', page)


@pytest.mark.slow
def test_components_have_a_signature_and_a_table_of_their_options(site: Path) -> None:
    text = page_text(site / "api_components.html")
    assert "PoissonSampler ( cohort_size : int = 10 )" in text
    assert "Chosen by sampler=poisson . Parameters: Name Type Description Default cohort_size int" in text
    assert "clients per round, on average 10" in text


@pytest.mark.browser
def test_pages_that_are_opened_as_files_can_be_searched(site: Path, browser_page: Any) -> None:
    browser_page.goto((site / "papers" / "checks.html").as_uri())
    browser_page.keyboard.press("f")
    browser_page.keyboard.type("virtual_client_size")
    browser_page.wait_for_selector(".md-search-result__link[href*='reference.html']")
