"""What goes through the topics: how much and when, of what size, under which keys, how compressed.

And how far those who read them were behind.

    plan.py      which offsets are read, of which topics; all, or an even sample
    measure.py   one range of offsets, measured by the column; pure
    heavy.py     the heaviest keys, in bounded memory; pure
    commits.py   what groups have committed, and when, from `__consumer_offsets`; pure
    reading.py   a task: asks the leader for a range, and measures what comes
    totals.py    what Spark is asked of all measures
    summary.py   what that comes to: rates, shares, skew, lag; pure
    job.py       the whole of it
    page.py      and as a page

Rule 1: tasks send sums, not records: what travels does not grow with the topics, keys aside, and
        those are bounded.
Rule 2: whatever is an estimate says so.
"""
