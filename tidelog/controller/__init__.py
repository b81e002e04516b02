"""What the cluster knows of itself: metadata records, the image that they add up to, and decisions.

A decision is a function of an image: which records to write so that a broker registers, a topic is made,
a leader is elected, replicas move. Pure: no clock, no file, no socket; drivers in `cluster` pass time in.

    records.py         every change of the metadata, as a value in the metadata log
    image.py           what the records add up to; snapshot.py: the same as bytes
    difference.py      what a broker does when the image has changed: open, close, lead, follow
    decisions.py       what is answered to those who want the metadata changed
    users.py           the same of users and their passwords
    acls.py            the same of permissions and denials
    conflicts.py       which proposals stand though something was committed meanwhile
    judging.py         which records other nodes may propose, and which the image can take
    controller.py      the active controller: what it hears and decides by itself
    worklist.py        partitions that it has yet to look at, some at a time
    leases.py          heartbeats in; who is fenced or unfenced out
    registration.py    a broker's process wants to join
    membership.py      brokers that leave, return, stop or are removed
    reports.py         how far each replica goes, by what brokers reported
    elections.py       who leads a partition when brokers leave and return
    in_sync.py         whether a leader may have another in-sync set
    placement.py       which brokers hold the partitions of a new topic
    moves.py           plans: brokers drained, load balanced
    reassignment.py    one partition's move: begun, cancelled, completed
"""
