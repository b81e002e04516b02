"""Tables that pipelines write: the same law for all of them.

counting.py     as many rows in the files as Spark has written
"""
