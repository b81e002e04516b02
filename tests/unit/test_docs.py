"""What the documents say is what the code does."""

import re
from importlib.util import find_spec
from pathlib import Path

import yaml

from tests.suites.__main__ import SUITES
from tests.suites.document import api_table
from tests.support import commands
from tidelog.config import reference
from tidelog.faces import permissions_page
from tidelog.operators import reference as verbs

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented_as_it_is():
    written = (ROOT / "docs" / "configuration.md").read_text()

    assert written == reference(), "run `python -m tidelog.config > docs/configuration.md`"


def test_every_verb_is_documented_as_it_is():
    written = (ROOT / "docs" / "verbs.md").read_text()

    assert written == verbs.reference(), "run `python -m tidelog.operators > docs/verbs.md`"


def test_every_permission_is_documented_as_it_is():
    written = (ROOT / "docs" / "permissions.md").read_text()

    assert written == permissions_page.page(), (
        "run `python -m tidelog.faces.permissions_page > docs/permissions.md`"
    )


def test_the_table_of_apis_is_the_code_s_own():
    written = (ROOT / "docs" / "compatibility.md").read_text()

    assert api_table() in written, "run `make test-clients ARGS=--apis` and put it there"


def test_the_page_of_commands_is_made_of_their_help():
    written = (ROOT / "docs" / "commands.md").read_text()

    assert written == commands.page(), "run `python -m tests.support.commands > docs/commands.md`"


def test_every_suite_has_its_module_and_every_page_names_one_that_is_there():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {name for page in pages for name in re.findall(r"ARGS=([a-z][a-z-]+)`", page.read_text())}

    assert all(find_spec(f"tests.suites.{module}") for module in SUITES.values())
    assert "hive" in named
    assert named <= {*SUITES}


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]

    dead = [
        f"{page.relative_to(ROOT)}: {link}" for page in pages for link in links(page) if not leads(page, link)
    ]

    assert len(pages) > 30
    assert not dead


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def leads(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_creates_no_topic_that_the_sample_pipeline_of_make_run_has():
    sample = ROOT / "tidelog" / "spark" / "pipelines" / "sample" / "pipeline.yaml"
    taken = yaml.safe_load(sample.read_text())["topics"]

    created = re.findall(r"topics create (\w+)", (ROOT / "README.md").read_text())

    assert created, "README shows how to create a topic"
    assert not taken.keys() & set(created)
