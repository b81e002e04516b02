"""Transactions: who may write in them, how each ends, and one decision over many."""
