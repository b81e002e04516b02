"""Kafka's Java client: `programs/java/Suite.java`, compiled against the pinned jars."""

from collections.abc import Iterator

from tests.suites import tools
from tests.suites.checks import Context, run_program
from tests.suites.report import Check


def version() -> str:
    tools.compiled(tools.PROGRAMS / "java" / "Suite.java")
    jar = next(tools.jars().glob("kafka-clients-*.jar"))
    return jar.stem.removeprefix("kafka-clients-")


def run(context: Context) -> Iterator[Check]:
    jars = tools.jars()
    classes = tools.compiled(tools.PROGRAMS / "java" / "Suite.java")
    return run_program(
        ["java", "-Xmx512m", "-cp", f"{classes}:{jars}/*", "Suite", context.bootstrap],
        context.directory / "java.log",
    )
