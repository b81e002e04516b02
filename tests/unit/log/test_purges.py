from tidelog.log.purges import Purges


def test_who_never_began_anew_is_concerned_by_every_purge():
    purges = Purges(floor=20)
    purges.add(7)

    assert purges.since(None) == 20
    purges.add(30)
    assert purges.since(None) == purges.floor == 30


def test_who_began_anew_is_concerned_by_later_purges_only():
    purges = Purges(floor=100)
    assert purges.since(purges.count) == 0

    began = purges.count
    for end in (50, 90, 40, 60):
        purges.add(end)

    assert [purges.since(began + n) for n in range(5)] == [90, 90, 60, 60, 0]
    assert purges.floor == 100


def test_a_log_that_begins_anew_lacks_what_its_leader_lacks():
    purges = Purges(floor=5)
    purges.add(9)

    purges.begin(70)

    assert (purges.floor, purges.count, purges.since(0)) == (70, 0, 0)
