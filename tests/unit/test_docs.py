"""What the documents say is what the code does."""

from pathlib import Path

from tidelog.config import reference

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented_as_it_is():
    written = (ROOT / "docs" / "configuration.md").read_text()

    assert written == reference(), "run `python -m tidelog.config > docs/configuration.md`"
