"""What a client is told that may not do what it asks for, by the kind of resource."""

from tidelog.errors import BrokerError


class TopicAuthorizationFailed(BrokerError):
    """Who asks may not do this to the topic; an operator can allow it."""

    code = 29


class GroupAuthorizationFailed(BrokerError):
    """Who asks may not do this to the group; an operator can allow it."""

    code = 30


class ClusterAuthorizationFailed(BrokerError):
    """Who asks may not do this to the cluster; an operator can allow it."""

    code = 31


class TransactionalIdAuthorizationFailed(BrokerError):
    """Who asks may not do this with the transactional id; an operator can allow it."""

    code = 53
