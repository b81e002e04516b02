"""The note of a table: for each query the number of its last batch, and what that batch was.

Rule 1: a note is set in the commit that adds the batch. So a batch that Spark repeats after a crash
        is found, and passed over.
Rule 2: a note is a property of the table, and stays when snapshots expire.
Rule 3: a batch of the same number that is another one (`spark/proofs.py`) is refused, and so is one
        that is older than the note: Spark repeats only its newest batch.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.spark.proofs import OtherContent, Proof, difference

if TYPE_CHECKING:
    from pyiceberg.table import Table

WRITTEN: Final = "tidelog.batch-written."
PROOF: Final = "tidelog.batch-proof."


def written(properties: Mapping[str, str], query: str) -> int:
    """The last batch of a query that a table has; -1 if none."""
    return int(properties.get(f"{WRITTEN}{query}", -1))


def note(query: str, batch: int, proof: Proof) -> dict[str, str]:
    """The properties that say that a batch is written."""
    return {f"{WRITTEN}{query}": str(batch), f"{PROOF}{query}": proof.encode().decode()}


def check_replay(table: "Table", name: str, query: str, batch: int, proof: Proof) -> None:
    """Refuse to pass over a batch that is not the one that was written under its number."""
    newest = written(table.properties, query)
    why = difference(Proof.decode(table.properties.get(f"{PROOF}{query}")), proof)
    if newest > batch:
        why = f"the newest that was written is {newest}, and only that comes again"
    if why is not None:
        raise OtherContent(
            f"batch {batch} of query {query} into table {name} was not written: {why}. The "
            "checkpoint is older than the table, or was repaired. Begin with a new checkpoint "
            "where the written batch ended; or have all written that comes, again too, after the "
            f"table's properties {WRITTEN}{query} and {PROOF}{query} are removed "
            "(docs/pipelines.md says how)"
        )
