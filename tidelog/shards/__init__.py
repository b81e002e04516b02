"""What all coordinators share: state that is a fold of one partition, and what it wants done.

Groups, transactions and queues each keep their state in shards, one for each partition of an internal topic.
Here are their common parts: effects, writes in flight, deadlines, and where a name belongs. Pure.

    effects.py    answers and records: what a machine on a log wants done
    ledger.py     what was sent to the log and is not stored yet
    refusals.py   what is answered when the log refused a write
    deadlines.py  many deadlines, most of them moved before they come
    believed.py   the wall clock, distrusted: how late it is at least
"""
