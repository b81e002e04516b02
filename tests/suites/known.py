"""The failures that are explained: by suite, the check and why it fails today.

An entry that passes fails the run too, so that nothing stays here once it is mended.
docs/compatibility.md says more about each.
"""

from typing import Final

_ADMIN: Final = "test_admin_integration.test_"

KNOWN: Final[dict[str, dict[str, str]]] = {
    "kafka-tools": {"dump log decodes cluster metadata": "the metadata log holds records of our own"},
    "kafka-python": {
        f"{_ADMIN}describe_configs_broker_resource_returns_configs": (
            "a broker's settings have our names: kafka.advertised, not advertised.listeners"
        ),
        f"{_ADMIN}alter_replica_log_dirs": "AlterReplicaLogDirs (34): a node has one directory",
        f"{_ADMIN}list_config_resources": "ListConfigResources (74) is not served",
    },
}
