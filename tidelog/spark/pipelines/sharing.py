"""Places that executors on other machines do not reach.

Rule: a path of this machine is refused unless the executors are on it, or somebody says that all of
      them have it mounted (`shared: true`). What is written elsewhere would be lost without a word.
"""

from tidelog.spark.pipelines.spec import Pipeline, SpecError
from tidelog.spark.session import is_local


def is_path(location: str) -> bool:
    """Whether a location is of a machine's own file system: a path, or `file:` and one."""
    return "://" not in location or location.startswith("file:")


def check_shared(pipeline: Pipeline, master: str) -> None:
    """SpecError, if executors elsewhere would write to places of their own."""
    if is_local(master) or master.startswith("local-cluster[") or pipeline.shared:
        return
    places = {"checkpoint": pipeline.path(pipeline.checkpoint)}
    for name, sink in pipeline.sinks.items():
        if sink.parquet:
            places[f"sinks.{name}.parquet"] = pipeline.path(sink.parquet)
        elif sink.delta:
            places[f"sinks.{name}.delta"] = pipeline.path(sink.delta)
        elif sink.iceberg:
            warehouse = str(sink.catalog.get("warehouse", ""))
            if warehouse or not {"uri", "type", "name"} & sink.catalog.keys():
                places[f"sinks.{name}.catalog.warehouse"] = pipeline.path(warehouse or "warehouse")
    for key, location in places.items():
        if is_path(location):
            raise SpecError(
                f"{key} is {location}, and the executors of {master} may be on other machines, "
                "which write to disks of their own. Name a place that all of them reach; or, if "
                "every machine has this one mounted, say `shared: true` in the pipeline"
            )
