"""A partition's log through power losses, cuts, retention and compaction, against its model.

The story and its invariants are in `tests/support/log_story.py`. To see one seed again, or to look
further:

    TIDELOG_SEED=123 python -m pytest tests/simulation/test_log_story.py
    TIDELOG_SEEDS=5000 python -m pytest tests/simulation/test_log_story.py -n 4
"""

import os

import pytest

from tests.simulation.world import SEED_VARIABLE
from tests.support.log_story import DIRECTORY, LogStory

SEEDS = int(os.environ.get("TIDELOG_SEEDS", "60"))
BLOCKS = 4


def play(seed: int) -> LogStory:
    story = LogStory(seed)
    try:
        story.play()
    except AssertionError as error:
        error.add_note(f"seed {seed}, life {story.lives}: replay with {SEED_VARIABLE}={seed}")
        raise
    return story


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_log_is_what_was_written_to_it_whatever_happens_to_its_disk(block):
    seeds = range(block, SEEDS, BLOCKS)
    if SEED_VARIABLE in os.environ:
        seeds = range(int(os.environ[SEED_VARIABLE]), int(os.environ[SEED_VARIABLE]) + 1)

    for seed in seeds:
        play(seed)


def test_one_seed_is_one_story():
    first, second = play(1), play(1)

    assert first.disk.counts == second.disk.counts
    assert first.model == second.model
    assert first.disk.list(DIRECTORY) == second.disk.list(DIRECTORY)


def test_the_stories_meet_what_they_are_about():
    """Cuts, compaction, retention and deletion all change something in some of the seeds."""
    stories = [play(seed) for seed in range(20)]

    assert any(story.compacts and story.model.compacted_to for story in stories)
    assert any(story.model.start and not story.compacts for story in stories)
    assert any(story.model.begin for story in stories)
    assert any(len(story.log.segments) > 2 for story in stories)
