"""What other people's clients say about a running node: `make test-clients`.

Rule 1: every suite gets a node of its own, fresh; its settings are the defaults, but
for what the suite itself prescribes.
Rule 2: a check counts what arrived; that nothing failed is not enough.
Rule 3: a check that fails and is not explained in `known.py` fails the run.

pytest finds nothing here: the programs under test are Kafka's, and they bring their own runners.
What a machine lacks is installed into `.suites/`, by the package managers, in pinned versions.
"""
