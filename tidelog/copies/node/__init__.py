"""The node's half of copies: the views of its own replicas.

    views.py   each view follows its log, as far as that is decided
    fold.py    one piece of a log taken into a view, in a disk's thread

Rule: a view holds nothing that is not committed. It may touch the broker, and nothing of the client's.
"""
