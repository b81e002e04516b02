"""Consensus on one log, by pulling: pure machines that know nothing of topics."""
