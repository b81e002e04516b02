"""`tidelog start`: one node in the foreground."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.config import NodeConfig, flatten, from_environment, node_config
from tidelog.errors import ConfigError
from tidelog.faces.cli.common import UserError, key_values, note
from tidelog.faces.local.secret import read_private, read_secret


def start(
    data: Annotated[str | None, typer.Option("--data", metavar="DIR", help="Data directory.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.")
    ] = None,
    node_id: Annotated[
        int | None, typer.Option("--node-id", metavar="N", help="Number of this node in its cluster.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", metavar="HOST:PORT", help="Address for Kafka clients; port 0 picks a free one."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Address for HTTP clients; '' turns HTTP off."),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option("--peer", metavar="HOST:PORT", help="Address for the other nodes of the cluster."),
    ] = None,
    quorum: Annotated[
        str | None,
        typer.Option(
            "--quorum",
            metavar="ID@HOST:PORT,...",
            help="The 1, 3, 5 or 7 voters, as ID@HOST:PORT of their --peer addresses; the same on each node. "
            "Without it the node is a cluster of one.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another setting; repeatable.")
    ] = None,
) -> int:
    """Run one node until Ctrl-C.

    Prints one line, "ready kafka=HOST:PORT http=HOST:PORT ...", once clients
    can connect.
    Settings come from their defaults, then --config, then the environment
    (TIDELOG_LOG_RETENTION_MS is log.retention.ms), then these options; the
    last of these wins.

    \b
    Examples:
      tidelog start --data ./data
      tidelog start --kafka 127.0.0.1:9192 --set log.retention.ms=3600000
      tidelog start --config node.yaml
    """
    flags: dict[str, object] = dict(key_values(settings or [], "--set"))
    named = {"data": data, "node.id": node_id, "kafka": kafka, "http": http, "peer": peer, "quorum": quorum}
    flags.update((key, value) for key, value in named.items() if value is not None)
    built = build_config(config, os.environ, flags)
    if built.cluster_secret_file:
        built = replace(built, cluster_secret=read_secret(Path(built.cluster_secret_file)))
    if built.first_user_file:
        content = read_private(Path(built.first_user_file), "first.user.file")
        built = replace(built, first_user=content.decode("utf-8", "replace"))
    if (Path(built.data) / "cluster.json").exists():
        raise UserError(
            f"{built.data} holds a whole cluster: run it with `tidelog cluster up --data "
            f"{built.data}` (or `make run`), or choose another --data for a single node"
        )

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from tidelog.faces import node

    return node.run(built, announce=_announce)


def build_config(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> NodeConfig:
    """The node's settings from all of their sources, checked."""
    from_file = {} if file is None else flatten(read_yaml(file))
    flags = {key.replace("_", "."): value for key, value in flags.items()}
    return node_config(from_file, from_environment(environment), flags)


def read_yaml(file: Path) -> dict[str, Any]:
    """A file of settings; ConfigError names the file, the line and the fix."""
    import yaml

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {file}: it is not text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"--config {file}: line {line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file}: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"--config {file}: it must be keys and values, such as `node.id: 1`")
    return tree


def _announce(line: str) -> None:
    """Tell programs on standard output, and people what to do next."""
    print(line, flush=True)
    if sys.stdout.isatty():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        address = fields.get("kafka", "")
        where = "" if address == "127.0.0.1:9092" else f" --bootstrap {address}"
        note("")
        note("Write and read from a second terminal:")
        note(f"  echo hello | tidelog produce greetings{where}")
        note(f"  tidelog consume greetings --from-beginning{where}")
        note("Or point any Kafka client at " + address + ". Ctrl-C stops the node.")
