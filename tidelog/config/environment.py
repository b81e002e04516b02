"""Settings in environment variables."""

from collections.abc import Mapping
from typing import Final

from tidelog.config.master_replica import FORMER_KEYS
from tidelog.config.node import all_node_settings
from tidelog.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
OTHER_VARIABLES: Final = frozenset(
    {
        "TIDELOG_BOOTSTRAP",
        "TIDELOG_CATALOG",
        "TIDELOG_CLIENT_CONFIG",
        "TIDELOG_DEBUG",
        "TIDELOG_HTTP_BOOTSTRAP",
        "TIDELOG_SCHEMA_REGISTRY",
        "TIDELOG_SCHEMA_REGISTRY_USER",
        "TIDELOG_SEEDS",
        "TIDELOG_WAREHOUSE",
    }
)
"""Variables that commands and tests read; they are no settings of a node."""
KUBERNETES_VARIABLES: Final = ("TIDELOG_SERVICE_", "TIDELOG_PORT")
"""How the variables begin that Kubernetes makes for a service called tidelog."""
MISSPELT: Final = 0.9
"""How much a variable's name must resemble a setting's to count as a misspelt one."""


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """The settings in `TIDELOG_*`.

    Other variables of that prefix are ignored, since commands and orchestrators have some of their
    own. One that is nearly the
    name of a setting is refused: it is a misspelt setting.
    """
    known = {_variable(key): key for key in (*all_node_settings(), *FORMER_KEYS)}
    found: dict[str, object] = {}
    for variable, value in environment.items():
        if variable in known:
            found[known[variable]] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and not _is_others(variable):
            import difflib

            close = difflib.get_close_matches(variable, known, n=1, cutoff=MISSPELT)
            if close:
                raise ConfigError(
                    f"there is no setting {variable} of the environment; did you mean {close[0]}?"
                )
    return found


def _is_others(variable: str) -> bool:
    return variable in OTHER_VARIABLES or variable.startswith(KUBERNETES_VARIABLES)


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")
