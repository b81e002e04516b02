"""Each anomaly is found in the smallest history that has it, and not in the nearest that has not.

Then the same in the large: what correct registers tell has none.
"""

from random import Random

import pytest

from tidelog.simulation import registers as checker
from tidelog.simulation.registers import ABSENT, NOTHING, Registers, Shown, check, log_of

KEY, OTHER = ("b-0", b"k"), ("b-0", b"l")


def rules(history, *records, key=KEY):
    """What is wrong with a history, given what the log holds of one key."""
    return {anomaly.rule for anomaly in check(history, log_of((key, *one) for one in records))}


def put(history, value, version, *, expects=None, process="writer", key=KEY):
    history.begin_write(process, key, value, expects=expects).ok(version)


def get(history, version, value=None, *, process="reader", key=KEY):
    history.begin_read(process, key).ok(Shown(version, value))


def two_puts():
    history = Registers()
    put(history, b"1", 3)
    put(history, b"2", 5)
    return history


ONE, TWO = (3, b"1"), (5, b"2")


def test_what_is_told_in_its_order_is_right():
    history = Registers()
    get(history, ABSENT)
    put(history, b"1", 3, expects=ABSENT)
    get(history, 3, b"1")
    put(history, b"2", 5, expects=3)
    get(history, 5, b"2")
    history.begin_write("writer", KEY, b"3", expects=3).refused(5)
    put(history, None, 6)
    get(history, ABSENT)
    history.begin_write("writer", KEY, None).needless()
    history.begin_write("writer", KEY, b"4", expects=5).refused(ABSENT)

    assert rules(history, ONE, TWO, (6, None)) == set()


# Writes.


def test_an_acknowledged_write_that_is_not_in_the_log_is_lost():
    assert rules(two_puts(), ONE) == {checker.LOST_WRITE}
    assert rules(two_puts(), ONE, (5, b"other")) == {checker.LOST_WRITE}


def test_a_write_whose_outcome_is_unknown_may_be_there_or_not():
    history = two_puts()
    history.begin_write("writer", KEY, b"3")

    assert rules(history, ONE, TWO) == set()
    assert rules(history, ONE, TWO, (9, b"3")) == set()


def test_two_writes_do_not_share_a_version():
    history = Registers()
    put(history, b"1", 3)
    put(history, b"2", 3)

    assert rules(history, (3, b"1")) == {checker.LOST_WRITE}


def test_what_was_asked_for_once_is_there_once():
    assert rules(two_puts(), ONE, TWO, (7, b"2")) == {checker.REPEATED_WRITE}


@pytest.mark.parametrize("outcome", ["fail", "refused"])
def test_what_was_not_done_is_not_there(outcome):
    history = Registers()
    put(history, b"1", 3)
    writing = history.begin_write("writer", KEY, b"2", expects=1)
    writing.fail() if outcome == "fail" else writing.refused(3)

    assert rules(history, ONE) == set()
    assert checker.FAILED_WRITE in rules(history, ONE, TWO)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_conditional_write_follows_the_version_that_it_names(is_known):
    history = Registers()
    put(history, b"1", 3)
    writing = history.begin_write("writer", KEY, b"2", expects=3)
    if is_known:
        writing.ok(5)

    assert rules(history, ONE, TWO) == set()
    assert rules(history, ONE, (4, b"of another"), TWO) == {checker.BROKEN_CONDITION}
    assert rules(history, ONE, (4, None), TWO) == {checker.BROKEN_CONDITION}


def test_a_write_for_what_must_not_be_there_follows_a_deletion_or_nothing():
    history = Registers()
    put(history, b"2", 5, expects=ABSENT)

    assert rules(history, TWO) == set()
    assert rules(history, ONE, (4, None), TWO) == set()
    assert rules(history, ONE, TWO) == {checker.BROKEN_CONDITION}


def test_a_refusal_names_another_version_than_was_wanted():
    history = Registers()
    put(history, b"1", 3)
    history.begin_write("writer", KEY, b"2", expects=3).refused(3)

    assert rules(history, ONE) == {checker.IDLE_REFUSAL}


def test_a_request_is_done_as_a_whole():
    history = Registers()
    history.begin_request("writer", [(KEY, b"1", None), (KEY, b"2", None)])

    assert rules(history, ONE, TWO) == set()
    assert rules(history) == set()
    assert rules(history, ONE) == {checker.TORN_BATCH}


def test_versions_rise_in_the_order_in_which_writes_follow_each_other():
    assert rules(two_puts(), (3, b"1"), (5, b"2")) == set()

    history = Registers()
    put(history, b"1", 5)
    put(history, b"2", 3)

    assert rules(history, (3, b"2"), (5, b"1")) == {checker.OUT_OF_ORDER}


def test_writes_at_the_same_time_have_any_order():
    history = Registers()
    first = history.begin_write("a", KEY, b"1")
    second = history.begin_write("b", KEY, b"2")
    first.ok(5)
    second.ok(3)

    assert rules(history, (3, b"2"), (5, b"1")) == set()


# Strong reads.


def test_a_strong_read_is_as_new_as_what_was_acknowledged_before():
    history = two_puts()
    get(history, 3, b"1")

    assert rules(history, ONE, TWO) == {checker.STALE_READ}


def test_a_strong_read_that_overlaps_a_write_sees_it_or_not():
    for seen in (ONE, TWO):
        history = Registers()
        put(history, b"1", 3)
        writing = history.begin_write("writer", KEY, b"2")
        reading = history.begin_read("reader", KEY)
        writing.ok(5)
        reading.ok(Shown(*seen))

        assert rules(history, ONE, TWO) == set()


def test_of_two_strong_reads_the_second_is_not_older():
    history = Registers()
    put(history, b"1", 3)
    history.begin_write("writer", KEY, b"2")
    get(history, 5, b"2", process="a")
    get(history, 3, b"1", process="b")

    assert rules(history, ONE, TWO) == {checker.STALE_READ}


def test_a_strong_read_sees_nothing_that_is_asked_for_later():
    history = Registers()
    get(history, 3, b"1")
    put(history, b"1", 3)

    assert rules(history, ONE) == {checker.FUTURE_READ}


def test_a_read_of_what_is_not_in_the_log_is_found():
    history = two_puts()
    get(history, 4, b"of a transaction that was aborted")
    assert rules(history, ONE, TWO) == {checker.PHANTOM_READ}

    history = two_puts()
    get(history, 5, b"1")
    assert rules(history, ONE, TWO) == {checker.PHANTOM_READ}


def test_a_refusal_is_a_strong_read():
    history = two_puts()
    history.begin_write("writer", KEY, b"3", expects=1).refused(3)
    assert rules(history, ONE, TWO) == {checker.STALE_READ}

    history = two_puts()
    history.begin_write("writer", KEY, b"3", expects=1).refused(4)
    assert rules(history, ONE, TWO) == {checker.PHANTOM_READ}

    history = two_puts()
    history.begin_write("writer", KEY, b"3", expects=1).refused(ABSENT)
    assert rules(history, ONE, TWO) == {checker.STALE_READ}


def test_absent_is_told_only_while_it_may_be_so():
    history = Registers()
    put(history, b"1", 3)
    put(history, None, 4)
    get(history, ABSENT)
    put(history, b"2", 5)

    assert rules(history, ONE, (4, None), TWO) == set()

    get(history, ABSENT)

    assert rules(history, ONE, (4, None), TWO) == {checker.STALE_READ}


def test_absent_of_which_only_one_moment_is_possible_counts_as_that():
    history = Registers()
    put(history, b"1", 3)
    history.begin_write("writer", KEY, None)  # it is not known what became of it
    get(history, ABSENT, process="a")
    get(history, 3, b"1", process="b")

    assert rules(history, ONE, (4, None)) == {checker.STALE_READ}


def test_a_key_that_expired_is_absent_though_nobody_has_deleted_it():
    history = Registers()
    put(history, b"1", 3)
    get(history, ABSENT)

    assert rules(history, ONE, (4, None)) == set()


# Local reads.


def local(history, shown, *, after=0, token=9, key=KEY):
    history.begin_local("reader", key, after).ok(shown, token)


def test_a_local_read_may_be_old_but_not_older_than_its_token():
    history = two_puts()
    local(history, Shown(3, b"1"), after=4, token=5)
    local(history, Shown(3, b"1"), after=5, token=5)
    local(history, NOTHING, after=3, token=3)
    local(history, Shown(5, b"2"), after=6, token=7)
    assert rules(history, ONE, TWO) == set()

    history = two_puts()
    local(history, Shown(3, b"1"), after=6)
    assert rules(history, ONE, TWO) == {checker.WENT_BACK}

    history = two_puts()
    local(history, NOTHING, after=4)
    assert rules(history, ONE, TWO) == {checker.WENT_BACK}


def test_a_deleted_key_does_not_come_back():
    records = (ONE, (4, None))
    history = Registers()
    put(history, b"1", 3)
    local(history, NOTHING, after=4)
    assert rules(history, *records) == set()

    local(history, Shown(3, b"1"), after=5)
    assert rules(history, *records) == {checker.WENT_BACK}


def test_a_local_read_shows_what_is_in_the_log_and_was_asked_for():
    history = Registers()
    local(history, Shown(3, b"1"))
    assert rules(history) == {checker.PHANTOM_READ}

    put(history, b"1", 3)
    assert rules(history, ONE) == {checker.FUTURE_READ}


def test_a_token_covers_what_was_shown_with_it():
    history = two_puts()
    local(history, Shown(5, b"2"), token=5)

    assert rules(history, ONE, TWO) == {checker.TOKEN}


# Scans.


@pytest.mark.parametrize("is_strong", [True, False])
def test_a_scan_shows_one_moment(is_strong):
    log = log_of([(KEY, 1, b"a"), (OTHER, 2, b"b"), (KEY, 3, b"c"), (OTHER, 4, None)])

    def scanned(mine, others):
        history = Registers()
        scan = history.begin_scan("reader", "b-0", is_strong=is_strong)
        scan.ok({b"k": mine, b"l": others}, 9)
        return {anomaly.rule for anomaly in check(history, log)}

    assert scanned(Shown(1, b"a"), NOTHING) == set()
    assert scanned(Shown(1, b"a"), Shown(2, b"b")) == set()
    assert scanned(Shown(3, b"c"), NOTHING) == set()
    log[OTHER].pop()
    assert scanned(Shown(3, b"c"), NOTHING) == {checker.TORN_SCAN}
    log = log_of([(KEY, 1, b"a"), (KEY, 3, b"c"), (OTHER, 4, b"d")])
    assert scanned(Shown(1, b"a"), Shown(4, b"d")) == {checker.TORN_SCAN}


# In the large.


class Model:
    """Correct registers, whose operations take effect between their call and their return."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.history = Registers()
        self.records = []
        self.now = {}
        self.open = []

    def step(self, number):
        if self.open and self.random.random() < 0.5:
            self.open.pop(self.random.randrange(len(self.open)))()
            return
        key = ("b-0", b"%d" % self.random.randrange(4))
        roll = self.random.random()
        if roll < 0.4:
            self.begin_read(key)
        else:
            self.begin_write(key, None if roll > 0.85 else b"v%d" % number)

    def begin_read(self, key):
        reading = self.history.begin_read("reader", key)

        def effect():
            shown = self.now.get(key, NOTHING)
            self.open.append(lambda: reading.ok(shown))

        self.open.append(effect)

    def begin_write(self, key, value):
        expects = None
        if self.random.random() < 0.6:
            expects = self.now.get(key, NOTHING).version - self.random.choice((0, 0, 1))
        expects = None if expects is not None and expects < ABSENT else expects
        writing = self.history.begin_write("writer", key, value, expects=expects)

        def effect():
            current = self.now.get(key, NOTHING)
            if expects not in (None, current.version):
                self.open.append(lambda: writing.refused(current.version))
            elif value is None and current is NOTHING:
                self.open.append(writing.needless)
            else:
                version = len(self.records)
                self.records.append((key, version, value))
                self.now[key] = NOTHING if value is None else Shown(version, value)
                if self.random.random() < 0.9:  # else nobody hears of it
                    self.open.append(lambda: writing.ok(version))

        self.open.append(effect)


@pytest.mark.parametrize("seed", range(20))
def test_correct_registers_have_no_anomaly(seed):
    model = Model(seed)
    for number in range(400):
        model.step(number)
    while model.open:
        model.open.pop(0)()

    assert len(model.history) > 100
    assert check(model.history, log_of(model.records)) == []


@pytest.mark.parametrize("seed", range(20))
def test_one_stale_read_among_many_is_found(seed):
    model = Model(seed)
    for number in range(400):
        model.step(number)
    while model.open:
        model.open.pop(0)()
    log = log_of(model.records)
    key, records = max(log.items(), key=lambda each: len(each[1]))
    old = next(one for one in records if one.value is not None)
    put(model.history, b"the last", len(model.records), key=key)
    records.append(checker.Logged(len(model.records), b"the last"))
    assert check(model.history, log) == []

    get(model.history, *old, key=key)

    assert checker.STALE_READ in {anomaly.rule for anomaly in check(model.history, log)}
