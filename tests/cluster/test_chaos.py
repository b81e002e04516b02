"""Whatever happens to three nodes, what they told their clients could have been told by one log."""

from pathlib import Path

import pytest

from tests.cluster.chaos import Chaos

SEED = 20261118
SECONDS = 18.0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_clients_are_told_amid_faults_is_what_a_correct_log_would_say(tmp_path: Path) -> None:
    outcome = Chaos(tmp_path, SEED).run(SECONDS)

    print(outcome)
    assert outcome.is_good, str(outcome)
    assert outcome.acknowledged > 1000
    assert outcome.compared > 0
