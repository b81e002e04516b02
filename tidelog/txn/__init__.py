"""Transactions: who may write in them, how each ends, and one decision over many.

The machine of one transactional id, and all ids of one partition of `__transaction_state`. Requests, ticks
and "stored" come in; answers, records and markers to send go out. Pure: no clock, no file, no socket.
"""
