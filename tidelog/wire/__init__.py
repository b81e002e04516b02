"""Bytes to requests and responses to bytes: frames, the table of APIs, and the two hot codecs.

`apis.py` says which APIs and versions a node advertises. Message types come from the library kio; Produce
and Fetch are read and written by hand. Nothing here knows partitions, topics or connections.
"""
