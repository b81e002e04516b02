"""Hive's metastore, of the jars that Spark brings, as the catalog of pipelines and archives."""

import getpass
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    HeartbeatRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockType,
    UnlockRequest,
)
from pyiceberg.catalog.hive import HiveCatalog

from tests.spark.outages import complaints
from tests.suites import tools
from tests.suites.checks import Context, run_checks
from tests.suites.report import Check
from tests.suites.tables import Through, checks_of, running, session
from tests.support.cluster import wait_until

JARS: Final = Path(pyspark.__file__).parent / "jars"
WAIT_SECONDS_MAX: Final = 240.0


def version() -> str:
    tools.java()
    return next(JARS.glob("hive-metastore-*.jar")).stem.rpartition("-")[2]


def run(context: Context) -> Iterator[Check]:
    directory = context.directory / "hive"
    directory.mkdir()
    warehouse = f"file://{directory}/warehouse"
    program = tools.PROGRAMS / "hive" / "Metastore.java"
    words = ["java", "-Xmx512m", f"-Dderby.system.home={directory}", "-cp", f"{JARS}/*", str(program)]
    with (
        session(context) as spark,
        running([*words, f"{directory}/metastore", warehouse], directory / "log") as catalog,
    ):
        told = {
            "type": "hive",
            "uri": f"thrift://127.0.0.1:{catalog.port}",
            "warehouse": warehouse,
            "hive.hive2-compatible": "true",
        }
        yield from run_checks(checks_of(ThroughHive(spark, context, catalog, told)))


class ThroughHive(Through):
    def a_lock_that_a_killed_writer_left_is_waited_for(self) -> None:
        self._topics.make("locked")
        self._put("locked", {"id": 1})
        self._run("locked", "id int")
        self._put("locked", {"id": 2})
        with HiveCatalog("hive", **self._told)._client as client, complaints() as heard:
            lock = _lock(client, "shop", "locked")

            def is_waited_for() -> bool:
                client.heartbeat(HeartbeatRequest(lockid=lock))
                return "is locked in its catalog" in heard.text

            writing = threading.Thread(target=self._run, args=("locked", "id int"))
            writing.start()
            try:
                wait_until(is_waited_for, "nobody waits for the lock", WAIT_SECONDS_MAX)
            finally:
                client.unlock(UnlockRequest(lockid=lock))
                writing.join()
        assert sorted(one["id"] for one in self._rows("shop.locked")) == [1, 2]


def _lock(client: Client, database: str, table: str) -> int:
    component = LockComponent(LockType.EXCLUSIVE, LockLevel.TABLE, database, table, isTransactional=True)
    asked = LockRequest([component], user=getpass.getuser(), hostname=socket.gethostname())
    return int(client.lock(asked).lockid)
