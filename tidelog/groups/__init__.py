"""Consumer groups: the machine of one group, and all groups of one partition of `__consumer_offsets`.

Requests, ticks and "stored" come in as events; answers and records to append go out as effects. Pure: no
clock, no file, no socket. A restart folds the partition's log and knows the same as before.
"""
