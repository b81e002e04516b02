"""How Spark finds `format("tidelog")`: it looks into every package whose name begins so.

An error here would hide the sources of all other packages. So what is missing is said when this
source is used, not when it is looked for.
"""

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]

try:
    from tidelog.spark.source import TidelogSource as DefaultSource
except Exception as missing:
    _reason = f"{missing}; Spark needs it to read and write topics: pip install 'tidelog[spark]'"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Says what is missing."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(_reason)

        @classmethod
        def name(cls) -> str:
            return "tidelog"
