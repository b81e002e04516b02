"""What the documents say is what the code does."""

import re
from pathlib import Path

import yaml

from tests.suites.document import api_table
from tidelog.config import reference

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented_as_it_is():
    written = (ROOT / "docs" / "configuration.md").read_text()

    assert written == reference(), "run `python -m tidelog.config > docs/configuration.md`"


def test_the_table_of_apis_is_the_code_s_own():
    written = (ROOT / "docs" / "compatibility.md").read_text()

    assert api_table() in written, "run `make test-clients ARGS=--apis` and put it there"


def test_readme_creates_no_topic_that_the_sample_pipeline_of_make_run_has():
    sample = ROOT / "tidelog" / "spark" / "pipelines" / "sample" / "pipeline.yaml"
    taken = yaml.safe_load(sample.read_text())["topics"]

    created = re.findall(r"topics create (\w+)", (ROOT / "README.md").read_text())

    assert created, "README shows how to create a topic"
    assert not taken.keys() & set(created)
