"""Consensus on one log, by pulling: pure machines that know nothing of topics.

A member is a follower, candidate, leader or observer, each a class with its own transitions. Messages and
ticks come in; messages, votes to store and entries to append go out. No clock, no file, no socket:
`cluster` drives it, and tests drive it with transcripts.
"""
