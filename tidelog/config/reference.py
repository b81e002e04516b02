"""Every setting, written down for people."""

from tidelog.config.master_replica import former_reference
from tidelog.config.node import NODE_SETTINGS
from tidelog.config.topic import TOPIC_SETTINGS


def reference() -> str:
    """Every setting as Markdown: `docs/configuration.md`, which a test holds to this."""
    lines = [
        "# Settings",
        "",
        "Made from the code: `python -m tidelog.config > docs/configuration.md`.",
        "",
        "Sources; the last one wins: defaults, the YAML file (`--config`; nested or flat, underscores",
        "count as dots), the environment (`TIDELOG_NUM_PARTITIONS`), `--set` and other options.",
    ]
    for title, intro, known in (
        ("A node", "", NODE_SETTINGS),
        (
            "A topic",
            "Set when a topic is created. Behind `log.` the same keys are the node's defaults for "
            "all topics.",
            TOPIC_SETTINGS,
        ),
    ):
        lines += ["", f"## {title}", "", *([intro, ""] if intro else [])]
        lines += ["| key | default | may be | what it does |", "|---|---|---|---|"]
        for name, entry in known.items():
            default = entry.text(entry.default) or "(none)"
            lines.append(f"| `{name}` | {default} | {entry.describe()} | {entry.doc} |")
    lines += [
        "",
        "## Files for a master and its replicas",
        "",
        "A file that was written for one master and its replicas may be given to `--config`, except for",
        "the keys that are refused. A key with a name of ours sets ours; set only one of them. Keys of the",
        "replication stream affect copies outside of the cluster.",
        "",
        *former_reference(),
    ]
    return "\n".join([*lines, ""])
