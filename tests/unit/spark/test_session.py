"""What a session is told, without one."""

import sys
from pathlib import Path

import pytest

from tidelog.errors import TidelogError
from tidelog.spark.session import SparkMissing, check_installed, is_local, session_settings

HERE = Path("/somewhere")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*, 3]"])
def test_threads_of_the_driver_are_local(master):
    assert is_local(master)


@pytest.mark.parametrize("master", ["spark://a:7077", "yarn", "k8s://https://a", "localhost"])
def test_any_other_master_is_not(master):
    assert not is_local(master)


def test_what_the_user_says_wins_over_what_is_sensible():
    conf = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Da=b"}

    settings = session_settings("job", master="local[2]", directory=HERE, conf=conf)

    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_a_packed_environment_is_sent_to_the_executors():
    settings = session_settings(
        "job", master="spark://a:7077", directory=HERE, conf={}, environment="env.tar.gz"
    )

    assert settings["spark.archives"] == "env.tar.gz#environment"
    assert "spark.driver.host" not in settings


def test_speculation_is_refused_with_the_reason():
    with pytest.raises(TidelogError, match="it must be false: two attempts"):
        session_settings("job", master="yarn", directory=HERE, conf={"spark.speculation": "true"})


def test_a_spark_without_arrow_names_the_command_that_helps(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(SparkMissing, match=r"pyarrow.*pip install 'tidelog\[spark\]'"):
        check_installed()


def test_python_processes_are_reached_without_tcp_where_the_path_is_short_enough():
    near, far = Path("/tmp/tidelog-spark-1"), Path("/tmp") / ("x" * 60)

    settings = session_settings("job", master="local[2]", directory=near, conf={})

    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.python.unix.domain.socket.dir"] == str(near)
    for directory, master in ((far, "local[2]"), (near, "spark://a:7077")):
        settings = session_settings("job", master=master, directory=directory, conf={})
        assert "spark.python.unix.domain.socket.enabled" not in settings
