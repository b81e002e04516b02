"""The client needs no node: it can be read, and installed, with a handful of modules beside it."""

import shutil
import subprocess
import sys
from pathlib import Path

import tidelog

NEEDED = ("__init__.py", "client", "model.py", "errors.py", "records.py", "security", "wire", "host")
IMPORTS_ALL = """
import importlib, pkgutil
import tidelog.client
for module in pkgutil.walk_packages(tidelog.client.__path__, "tidelog.client."):
    importlib.import_module(module.name)
print(tidelog.client.__file__)
"""


def test_the_client_works_without_the_rooms_of_a_node(tmp_path: Path) -> None:
    package = Path(tidelog.__file__).parent
    (tmp_path / "tidelog").mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (package / name).is_dir() else shutil.copy
        copy(package / name, tmp_path / "tidelog" / name)

    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_ALL],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path))
