"""Orders that count: something was bought, and paid for."""

from pyspark.sql import DataFrame, SparkSession


def transform(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].where("amount > 0 AND total > 0 AND region IS NOT NULL")
