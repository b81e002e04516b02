"""Which change of the voters a leader may propose (KIP-853).

Rule 1: one voter at a time, so that a majority of the old set and one of the new always share a
        member. To exchange a voter's disk is two changes.
Rule 2: a change is proposed only after the one before it is committed, and after a record of this
        leader's own epoch is: an older leader's unfinished change could otherwise overlap with it.
Rule 3: whoever joins has caught up first, so that the new majority is not waited for.
"""

from tidelog.errors import BrokerError
from tidelog.raft.leader import Leading
from tidelog.raft.state import RaftMember
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet


class VoterChangeRefused(BrokerError):
    """The voters cannot be changed like this."""

    code = 42


class DuplicateVoter(VoterChangeRefused):
    """The node votes already; if its disk was replaced, remove the old voter first."""

    code = 126


class VoterNotFound(VoterChangeRefused):
    """There is no such voter; look at the quorum's state for the directory's id."""

    code = 127


class VotersNotSettled(VoterChangeRefused):
    """Something must be committed or caught up with first; try again."""

    code = 7
    retriable = True


def with_voter(voter: Voter, *, member: RaftMember, leading: Leading, now: float) -> VoterSet:
    """The set that adds `voter`, or that says where a present one is reached now."""
    voters = member.log.voters
    present = voters.get(voter.key.id)
    if present == voter:
        raise DuplicateVoter(f"{voter.key} votes already")
    if present is not None and present.key != voter.key:
        raise DuplicateVoter(
            f"node {voter.key.id} votes already, with the directory {present.key.directory}; "
            f"remove that voter first"
        )
    _check_settled(member, leading)
    if present is None and not leading.is_caught_up(voter.key, now):
        raise VotersNotSettled(f"{voter.key} has not caught up with the leader yet")
    return voters.with_voter(voter)


def without_voter(key: ReplicaKey, *, member: RaftMember, leading: Leading) -> VoterSet:
    """The set that leaves `key` out."""
    voters = member.log.voters
    if key not in voters:
        raise VoterNotFound(f"{key} is not among the voters {voters.ids}")
    if len(voters) == 1:
        raise VoterChangeRefused(f"{key} is the last voter; a quorum needs one")
    _check_settled(member, leading)
    return voters.without(key.id)


def _check_settled(member: RaftMember, leading: Leading) -> None:
    if not leading.leads:
        raise VotersNotSettled(f"epoch {member.epoch} has just begun; nothing of it is committed")
    if leading.proposed is not None or not member.log.are_voters_committed:
        raise VotersNotSettled("another change of the voters is not committed yet")
