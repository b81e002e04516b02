"""What goes to executors with a pipeline."""

import zipfile
from pathlib import Path

from tidelog.spark.pipelines.shipping import modules, pack
from tidelog.spark.pipelines.spec import Pipeline, parse


def pipeline(folder: Path, *files: str) -> Pipeline:
    for name in ("step.py", *files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}")
    sources = {"orders": {"topic": "orders"}}
    sinks = {"out": {"from": "step", "topic": "out"}}
    return parse(
        {"name": "sales", "sources": sources, "steps": [{"python": "step.py"}], "sinks": sinks}, folder
    )


def test_modules_and_packages_go_and_everything_else_stays(tmp_path: Path) -> None:
    made = pipeline(
        tmp_path,
        "prices.py",
        "rules/__init__.py",
        "rules/north.py",
        "revenue.sql",
        "tests/late/rows.py",
        "state/x.py",
        "warehouse/y.py",
        ".venv/z.py",
        "__pycache__/w.pyc",
    )
    assert list(map(str, modules(made))) == ["prices.py", "rules/__init__.py", "rules/north.py"]
    packed = pack(made)
    assert packed is not None
    assert zipfile.ZipFile(packed).namelist() == ["prices.py", "rules/__init__.py", "rules/north.py"]


def test_an_archive_has_another_name_only_if_it_has_another_content(tmp_path: Path) -> None:
    made = pipeline(tmp_path, "prices.py")
    first = pack(made)
    assert first is not None
    (tmp_path / "prices.py").touch()
    assert pack(made) == first
    (tmp_path / "prices.py").write_text("PRICE = 2")
    second = pack(made)
    assert second is not None
    assert second != first
    assert not first.exists()


def test_steps_alone_are_not_sent(tmp_path: Path) -> None:
    assert pack(pipeline(tmp_path)) is None
