from pathlib import Path

import pytest

from tidelog.errors import ConfigError
from tidelog.faces.cli.start import build_config, read_yaml


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("node_id: 3\ndata: from-file\nkafka: 127.0.0.1:1111\nlog:\n  retention.ms: 1000\n")
    environment = {"TIDELOG_DATA": "from-environment", "TIDELOG_KAFKA": "127.0.0.1:2222"}

    config = build_config(file, environment, {"kafka": "127.0.0.1:3333"})

    assert config.node_id == 3
    assert config.data == "from-environment"
    assert config.kafka == "127.0.0.1:3333"
    assert config.topic_defaults.retention_ms == 1000


def test_the_bootstrap_of_clients_is_no_setting_of_a_node():
    build_config(None, {"TIDELOG_BOOTSTRAP": "127.0.0.1:1"}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: [1,\nb: 2", "line 2"), ("- a\n- b\n", "keys and values"), ("\x00", "node.yaml")],
)
def test_a_file_that_is_no_settings_is_named_with_its_fault(tmp_path, text, expected):
    file = tmp_path / "node.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=expected):
        read_yaml(file)


def test_an_empty_file_changes_nothing(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("# nothing yet\n")

    assert build_config(file, {}, {}) == build_config(None, {}, {})


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"/nowhere/node\.yaml: No such file"):
        read_yaml(Path("/nowhere/node.yaml"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "retention"], "KEY=VALUE"),
        (["--set", "log.retention.mss=1"], "did you mean 'log.retention.ms'"),
        (["--set", "log.retention.ms=soon"], "log.retention.ms is 'soon'"),
        (["--kafka", "nowhere"], "kafka: 'nowhere' is not HOST:PORT"),
        (["--node-id", "-1"], "node.id"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--quorum", "1@a:1,2@b:2"], "1, 3, 5 or 7"),
        (["--quorum", "1@a:1,1@b:2,3@c:3"], "node 1 twice"),
        (["--quorum", "7@127.0.0.1:9192"], "not one of the quorum"),
        (["--quorum", "here"], "ID@HOST:PORT"),
    ],
)
def test_a_wrong_setting_is_one_line_and_nothing_starts(tidelog, tmp_path, arguments, expected):
    data = tmp_path / "data"

    result = tidelog("start", "--data", data, *arguments)

    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1 and expected in result.err
    assert not data.exists()


def test_a_node_of_the_quorum_listens_where_the_quorum_says():
    quorum = "1@10.0.0.1:9192,2@10.0.0.2:9192,3@10.0.0.3:9192"

    config = build_config(None, {}, {"quorum": quorum, "node.id": 2})

    assert str(config.peer_endpoint) == "10.0.0.2:9192"


def test_the_ready_line_goes_to_standard_output(tidelog, tmp_path, monkeypatch):
    def run(config, *, announce):
        announce(f"ready kafka=127.0.0.1:5 node={config.node_id} data={config.data}")
        return 0

    monkeypatch.setattr("tidelog.faces.node.run", run)

    result = tidelog("start", "--data", tmp_path, "--node-id", 4)

    assert (result.code, result.err) == (0, "")
    assert result.out == f"ready kafka=127.0.0.1:5 node=4 data={tmp_path}\n"


def test_the_exit_code_of_the_node_is_that_of_the_command(tidelog, tmp_path, monkeypatch):
    monkeypatch.setattr("tidelog.faces.node.run", lambda config, *, announce: 74)

    assert tidelog("start", "--data", tmp_path).code == 74
