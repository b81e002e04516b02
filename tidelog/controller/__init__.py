"""What the cluster knows of itself: metadata records, the image that they add up to, and decisions.

A decision is a function of an image: which records to write so that a broker registers, a topic is made,
a leader is elected, replicas move. Pure: no clock, no file, no socket; drivers in `cluster` pass time in.
"""
