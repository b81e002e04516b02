"""The commands and snippets of README's "Try it" do what it says, at a node that has nothing."""

import re
import shlex
from pathlib import Path

from tests.support.node import NodeProcess
from tidelog.faces.cli import main

README = Path(__file__).parents[2] / "README.md"
DEFAULT = "127.0.0.1:9092"


def try_it() -> str:
    return README.read_text().split("## Try it", 1)[1].split("\n## ", 1)[0]


def snippets(library: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", try_it(), re.DOTALL)
    return [code for code in found if f"from {library} import" in code]


def commands(name: str) -> list[list[str]]:
    lines = re.findall(rf"^    \.venv/bin/tidelog ({name} .*)$", try_it(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_a_new_user_creates_a_topic_writes_to_it_and_reads_it_in_a_group(tmp_path, capfd):
    with NodeProcess(tmp_path / "data") as node:
        for command in commands("topics create"):
            assert main([*command, "--bootstrap", node.bootstrap]) == 0
        topic = commands("topics create")[0][2]
        value = '{"page": "/", "ms": 12}'
        written = ["produce", topic, "--key", "ada", "--value", value]
        assert main([*written, "--bootstrap", node.bootstrap]) == 0

        for code in snippets("confluent_kafka"):
            assert DEFAULT in code
            exec(compile(code.replace(DEFAULT, node.bootstrap), str(README), "exec"), {})
        read = capfd.readouterr().out

        for command in commands("groups describe"):
            assert main([*command, "--bootstrap", node.bootstrap]) == 0
        group = capfd.readouterr().out
        assert node.stop() == 0

    assert "b'ada'" in read and "b'bob'" in read
    assert topic in group
