"""The command `tidelog`.

Rule 1: standard output carries the result and nothing else; with `--json` it is one document.
Rule 2: an error is one line on standard error that says what to do. Exit 0 only when done, 2 for a
        wrong command line or a wrong setting, 130 after Ctrl-C.
Rule 3: a command imports what is heavy (kio, rich, yaml) when it runs, so that `--help` and
        `start` are quick.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import tidelog
from tidelog.errors import ConfigError, TidelogError
from tidelog.faces.cli import (
    acls,
    analyze,
    archive,
    audit,
    backup,
    bench,
    brokers,
    certs,
    cluster,
    configs,
    consume,
    elect,
    groups,
    kv,
    log,
    pipeline,
    produce,
    promote,
    proxy,
    pubsub,
    queue,
    quorum,
    reassign,
    replay,
    replica,
    replication,
    restore,
    simulate,
    start,
    stream,
    tokens,
    topics,
    transactions,
    users,
)
from tidelog.faces.cli.common import INTERRUPTED, WRONG_USE, UsageError, complain

app = typer.Typer(
    name="tidelog",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidelog {tidelog.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A replicated message log that Kafka clients speak to unchanged.

    \b
    Start a node, then use it from a second terminal:
      tidelog start --data ./data
      tidelog topics create orders --partitions 3
      echo "hello" | tidelog produce orders
      tidelog consume orders --from-beginning

    Or several nodes, one of which you may kill: tidelog cluster up --help.

    Commands that need a cluster find it at --bootstrap, or at
    TIDELOG_BOOTSTRAP, or at 127.0.0.1:9092. With --json they print one JSON
    document for programs.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("start")(start.start)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(kv.app, name="kv")
app.add_typer(queue.app, name="queue")
app.add_typer(stream.app, name="stream")
app.add_typer(pubsub.app, name="pubsub")
app.add_typer(replica.app, name="replica")
app.command("proxy")(proxy.proxy)
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(configs.app, name="configs")
app.add_typer(brokers.app, name="brokers")
app.add_typer(reassign.app, name="reassign")
app.add_typer(replication.app, name="replication")
app.command("promote")(promote.promote)
app.add_typer(elect.app, name="elect")
app.add_typer(quorum.app, name="quorum")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(tokens.app, name="tokens")
app.add_typer(log.app, name="log")
app.add_typer(backup.app, name="backup")
app.add_typer(certs.app, name="certs")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(archive.app, name="archive")
app.command("restore")(restore.restore)
app.command("replay")(replay.replay)
app.command("audit")(audit.audit)
app.command("analyze")(analyze.analyze)
app.command("bench")(bench.bench)
app.command("simulate")(simulate.simulate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    try:
        result = app(
            args=None if arguments is None else list(arguments), prog_name="tidelog", standalone_mode=False
        )
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader left, as `head` does. What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except TidelogError as error:
        complain(str(error))
        return WRONG_USE if isinstance(error, (ConfigError, UsageError)) else 1
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except UnicodeEncodeError as error:
        complain(f"{error.object!r} is not text in UTF-8; names must be")
        return WRONG_USE
    except Exception as error:
        return _explain(error)
    return result if isinstance(result, int) else 0


def _explain(error: Exception) -> int:
    """A wrong command line, which typer describes itself; or a bug of ours."""
    describe = getattr(error, "format_message", None)
    if describe is not None and not describe():
        return WRONG_USE  # a group without a command: typer has printed its help
    if describe is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tidelog"
        complain(f"{describe().rstrip('.')} (see `{command} --help`)")
        return int(getattr(error, "exit_code", WRONG_USE))
    if os.environ.get("TIDELOG_DEBUG"):
        raise error
    complain(
        f"a bug in tidelog: {type(error).__name__}: {error}; TIDELOG_DEBUG=1 shows where, please report it"
    )
    return 1
