"""What goes wrong where somebody proves who they are, and where it is said by what."""

from tidelog.errors import BrokerError


class UnsupportedMechanism(BrokerError):
    """This mechanism is not offered here; `sasl.enabled.mechanisms` has those that are."""

    code = 33


class IllegalSaslState(BrokerError):
    """This is not the moment for it: this listener asks for no proof, or the exchange has not begun."""

    code = 34


class AuthenticationFailed(BrokerError):
    """Who you are could not be proved; check the user, the password and the mechanism."""

    code = 58


class UnknownUser(BrokerError):
    """There is no such user, or it has no password of this mechanism."""

    code = 91


class DuplicateUser(BrokerError):
    """A request names a user twice; name each once."""

    code = 92


class UnacceptableCredential(BrokerError):
    """What was given makes no good password; the message says why."""

    code = 93
