"""What is shipped to run nodes elsewhere fits the code."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tidelog.broker.broker import _DRAIN_SECONDS_MAX
from tidelog.cluster.membership import _STOP_SECONDS_MAX
from tidelog.faces.cli import app
from tidelog.faces.cli.start import build_config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples():
    """Every settings file that the documents show, by where it is."""
    found = {path.name: path.read_text() for path in sorted(DEPLOY.glob("*.yaml"))}
    for number, text in enumerate(YAML.findall((ROOT / "docs" / "deployment.md").read_text())):
        found[f"deployment.md-{number}"] = text
    return found


def start_options(arguments):
    """The options of a `tidelog start`, as the command understands them."""
    command, *rest = arguments
    assert command == "start"
    return get_command(app).commands["start"].make_context("start", rest).params  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", examples())
def test_the_settings_that_are_shown_are_taken(tmp_path, name):
    file = tmp_path / "node.yaml"
    file.write_text(examples()[name])

    config = build_config(file, {}, {})

    assert config.data == "/var/lib/tidelog"


def test_node_1_of_three_is_a_voter_at_its_own_address():
    config = build_config(DEPLOY / "node-1.yaml", {}, {})

    assert sorted(config.quorum_nodes) == [1, 2, 3]
    assert config.quorum_nodes[config.node_id] == config.peer_endpoint
    assert config.topic_defaults.min_insync_replicas == 2


def unit():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "tidelog.service")
    return parser


def test_the_unit_starts_a_node_and_gives_it_the_time_that_a_stop_may_take():
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"])

    assert Path(program).name == "tidelog"
    assert start_options(arguments)["config"] == "/etc/tidelog/node.yaml"
    assert int(service["TimeoutStopSec"]) > _DRAIN_SECONDS_MAX + _STOP_SECONDS_MAX + 10
    assert service["KillSignal"] == "SIGTERM"
    assert service["Type"] == "exec", "a start does not wait for other machines"
    assert service["NotifyAccess"] == "main", "what it waits for is its status"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    text = (DEPLOY / "tidelog.service").read_text()
    path = tmp_path / "tidelog.service"
    path.write_text(text.replace("/opt/tidelog/bin/tidelog", sys.executable))

    verdict = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (verdict.returncode, verdict.stderr) == (0, "")


def instructions():
    """The steps of the Containerfile: words and the rest, continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_the_image_is_built_from_what_is_there_and_not_ignored():
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]

    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_the_image_runs_a_node_with_options_that_exist():
    steps = dict(instructions()[-2:])

    assert json.loads(steps["ENTRYPOINT"]) == ["tidelog"]
    options = start_options(json.loads(steps["CMD"]))
    assert options["data"] == "/var/lib/tidelog"
    settings = dict(text.split("=", 1) for text in options["settings"])
    flags = {"data": options["data"], "kafka": options["kafka"], "http": options["http"]}
    assert build_config(None, {}, flags | settings).kafka_advertised == "127.0.0.1:9092"


def test_the_image_has_what_the_lock_pins_and_comes_from_a_plain_name():
    steps = instructions()

    assert {rest.split()[0] for word, rest in steps if word == "FROM"} == {"python:3.11-slim"}
    install = next(rest for word, rest in steps if word == "RUN" and "run.txt" in rest)
    assert "--require-hashes" in install
