"""Whatever happens to three nodes, what they told their clients could have been told by one log."""

from pathlib import Path

import pytest

from tests.cluster.chaos import Chaos

SEED = 20261118
SECONDS_MAX = 30.0
KINDS = ("elect", "isolate", "kill", "kill all", "pause", "rebalance", "restart")
"""There are more; `make soak` has time for them."""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_clients_are_told_amid_faults_is_what_a_correct_log_would_say(tmp_path: Path) -> None:
    outcome = Chaos(tmp_path, SEED).run(SECONDS_MAX, KINDS)

    print(outcome)
    assert outcome.is_good, str(outcome)
    assert len(outcome.faults) > len(KINDS) / 2, "the machine is too slow for this"
    assert outcome.acknowledged > 1000
    assert outcome.compared > 0
