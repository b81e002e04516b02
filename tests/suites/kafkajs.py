"""kafkajs: `programs/kafkajs/suite.js`, run by Node."""

import json
from collections.abc import Iterator

from tests.suites import tools
from tests.suites.checks import Context, run_program
from tests.suites.report import Check


def version() -> str:
    package = tools.node_modules() / "node_modules" / "kafkajs" / "package.json"
    return json.loads(package.read_text())["version"]


def run(context: Context) -> Iterator[Check]:
    home = tools.node_modules()
    # Node finds modules beside the program, so the program goes to them.
    program = home / "suite.js"
    program.write_bytes((tools.PROGRAMS / "kafkajs" / "suite.js").read_bytes())
    return run_program(["node", str(program), context.bootstrap], context.directory / "kafkajs.log")
