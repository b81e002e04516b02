"""New folders, and folders that are there."""

from pathlib import Path

import pytest

from tidelog.spark.pipelines.folders import SAMPLE, create, find
from tidelog.spark.pipelines.spec import SpecError, load


def test_a_new_folder_holds_a_pipeline_that_is_right(tmp_path: Path) -> None:
    made = create(tmp_path / "sales", bootstrap="kafka:9092")

    pipeline = load(tmp_path / "sales")
    assert [str(file.relative_to(tmp_path / "sales")) for file in made] == list(SAMPLE)
    assert (pipeline.name, pipeline.bootstrap) == ("sales", "kafka:9092")
    assert pipeline.traffic is not None
    assert {sink.kind for sink in pipeline.sinks.values()} == {"bucket", "iceberg"}


def test_every_file_of_the_sample_is_copied() -> None:
    import tidelog.spark.pipelines as package

    sample = Path(package.__path__[0]) / "sample"
    files = {file for file in sample.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert {str(file.relative_to(sample)) for file in files} == set(SAMPLE)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "mine.txt").write_text("mine")

    with pytest.raises(SpecError, match="exists already, and holds something"):
        create(tmp_path / "sales", bootstrap="a:1")
    assert [file.name for file in (tmp_path / "sales").iterdir()] == ["mine.txt"]


def test_a_folder_whose_name_is_no_pipeline_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no name for a pipeline"):
        create(tmp_path / "1 2", bootstrap="a:1")
    assert not (tmp_path / "1 2").exists()


def test_pipelines_are_found_below_a_directory_but_not_in_what_they_made(tmp_path: Path) -> None:
    for name in ("a", "b/c", ".hidden", "a/state/copy", "d/e/f/g"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "pipeline.yaml").touch()

    assert find(tmp_path) == [tmp_path / "a", tmp_path / "b/c"]
    assert find(tmp_path / "a") == [tmp_path / "a"]
