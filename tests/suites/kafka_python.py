"""kafka-python's own integration tests, from its source distribution, against our node.

Its fixtures take a running broker from `KAFKA_URI`; of what they import, the distribution lacks
`test/service.py`, for which `programs/kafka_python/service.py` stands in.
"""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Final

from tests.suites import tools
from tests.suites.checks import Context
from tests.suites.report import Check

KAFKA_VERSION: Final = "4.1.0"
"""The release whose tests apply: what is for later brokers, they skip."""
SECONDS_MAX: Final = 900.0
SETTINGS: Final = {"node.id": 0, "num.partitions": 4, "group.min.session.timeout.ms": 1000}
"""What its own template of Kafka's `server.properties` sets, and its tests rely on."""


def version() -> str:
    pins = (tools.ROOT / "requirements" / "dev.txt").read_text()
    found = re.search(r"^kafka-python==(\S+)", pins, re.MULTILINE)
    assert found, "requirements/dev.txt pins kafka-python"
    tools.source_distribution("kafka-python", found[1])
    return found[1]


def run(context: Context) -> Iterator[Check]:
    unpacked = tools.source_distribution("kafka-python", version())
    tree = context.directory / "kafka-python"
    # The tests only: the library is the one installed, as built for users.
    shutil.copytree(unpacked / "test", tree / "test")
    shutil.copy(tools.PROGRAMS / "kafka_python" / "service.py", tree / "test" / "service.py")
    shutil.copy(tools.PROGRAMS / "kafka_python" / "plugin.py", tree / "conftest.py")
    (tree / "test" / "__init__.py").touch()
    report = context.directory / "report.xml"
    log = context.directory / "kafka-python.log"
    with log.open("wb") as output:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-c",
                os.devnull,
                "--rootdir",
                str(tree),
                f"--junitxml={report}",
                "--timeout=120",
                str(tree / "test" / "integration"),
            ],
            cwd=tree,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            env={
                **os.environ,
                "KAFKA_URI": f"kafka://{context.bootstrap}",
                "KAFKA_VERSION": KAFKA_VERSION,
                "KAFKA_ROOT": str(tree),
                "PYTHONPATH": str(tree),
            },
        )
    if not report.exists():
        yield Check(name="pytest", outcome="failed", detail=log.read_text()[-3000:])
        return
    for case in ElementTree.parse(report).iter("testcase"):
        yield _check(case)


def _check(case: ElementTree.Element) -> Check:
    module = case.get("classname", "").removeprefix("test.integration.")
    name = f"{module}.{case.get('name')}"
    seconds = float(case.get("time", "0"))
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            text = f"{found.get('message', '')}\n{(found.text or '')[-2500:]}"
            return Check(name=name, outcome="failed", detail=text, seconds=seconds)
    skipped = case.find("skipped")
    if skipped is not None:
        return Check(name=name, outcome="skipped", detail=skipped.get("message", ""))
    return Check(name=name, outcome="passed", seconds=seconds)
