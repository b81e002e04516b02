"""Consensus on one log, by pulling: pure machines that know nothing of topics.

A member is a follower, candidate, leader or observer, each a class with its own transitions. Messages and
ticks come in; messages, votes to store and entries to append go out. No clock, no file, no socket:
`cluster` drives it, and tests drive it with transcripts.

    machine.py    one member: takes messages and ticks, changes roles
    messages.py   what members say to each other, and what a machine takes and returns
    state.py      what every role shares; logview.py: what the machine knows of its log
    voters.py     the voters; changes.py: which change of them a leader may propose (KIP-853)
    elections.py  when a member takes another role
    idle.py       without a leader: waiting to campaign, or looking for a leader
    candidate.py  pre-vote, then votes
    leader.py     who holds what, and what a majority holds
    follower.py   fetching from the leader
"""
