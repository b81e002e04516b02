"""What is told of a failure in a source or a step."""

import runpy
import sys
from pathlib import Path

import pytest

from tidelog.spark.pipelines.spec import SpecError
from tidelog.spark.pipelines.tables import explained, first_words, importable

OF_SPARK = """[UNRESOLVED_COLUMN] A column `nothing` cannot be resolved.
Did you mean `id`? line 1 pos 7;
'Project ['nothing]
+- SubqueryAlias orders

JVM stacktrace:
org.apache.spark.sql.AnalysisException"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ValueError(OF_SPARK),
            "[UNRESOLVED_COLUMN] A column `nothing` cannot be resolved. Did you mean `id`? line 1 pos 7;",
        ),
        (ValueError("it broke === Streaming"), "it broke === Streaming"),
        (ValueError("it broke\n=== Streaming Query ===\nmuch"), "it broke"),
        (KeyError("x"), "'x'"),
        (ValueError(""), "ValueError"),
    ],
)
def test_plans_and_traces_are_left_out(error: Exception, words: str) -> None:
    assert first_words(error) == words


def test_a_failure_is_told_with_what_it_is_about() -> None:
    with pytest.raises(SpecError, match=r"^steps\[1\]: KeyError: 'x'$"), explained("steps[1]"):
        raise KeyError("x")
    with pytest.raises(SpecError, match=r"^sources\.a: b is wrong$"), explained("sources.a"):
        raise SpecError("b is wrong")


def test_a_step_imports_the_files_beside_it_and_no_other_pipeline_s(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "beside").mkdir(parents=True)
        (tmp_path / name / "beside" / "__init__.py").write_text(f"NAME = {name!r}")
        (tmp_path / name / "step.py").write_text("from beside import NAME")
        with importable(tmp_path / name):
            assert runpy.run_path(str(tmp_path / name / "step.py"))["NAME"] == name
        assert "beside" not in sys.modules
        assert str(tmp_path / name) not in sys.path
