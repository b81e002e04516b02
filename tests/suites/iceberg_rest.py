"""Iceberg's own REST catalog, whose tables pipelines and archives write."""

from collections.abc import Iterator

from tests.suites import tools
from tests.suites.checks import Context, run_checks
from tests.suites.report import Check
from tests.suites.tables import Through, checks_of, running, session


def version() -> str:
    jars = tools.iceberg_jars()
    names = (jar.stem for jar in jars.glob("iceberg-core-*.jar"))
    return next(name for name in names if "tests" not in name).rpartition("-")[2]


def run(context: Context) -> Iterator[Check]:
    directory = context.directory / "rest"
    directory.mkdir()
    warehouse = f"file://{directory}/warehouse"
    program = tools.PROGRAMS / "iceberg" / "RestCatalog.java"
    words = ["java", "-Xmx256m", "-cp", f"{tools.iceberg_jars()}/*", str(program)]
    with (
        session(context) as spark,
        running([*words, f"{directory}/catalog.db", warehouse], directory / "log") as catalog,
    ):
        told = {"type": "rest", "uri": f"http://127.0.0.1:{catalog.port}", "warehouse": warehouse}
        yield from run_checks(checks_of(Through(spark, context, catalog, told)))
