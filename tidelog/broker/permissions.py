"""The authorizer of a node: its settings, and the bindings of the newest metadata that it has."""

from typing import TYPE_CHECKING, Final

from tidelog.security.acls import Acls
from tidelog.security.authorizer import Authorizer, parse_super_users

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_NO_ACLS: Final = Acls()


def authorizer_of(broker: "Broker") -> Authorizer:
    """Before the metadata is read there are no bindings: only super users are let through then."""

    def acls() -> Acls:
        try:
            return broker.metadata.image.acls
        except AttributeError:  # the broker is not open yet
            return _NO_ACLS

    config = broker.config
    authorizer = Authorizer(
        acls,
        is_on=config.authorizer_enabled,
        super_users=parse_super_users(config.super_users),
        allows_unbound=config.allow_everyone_if_no_acl_found,
    )
    authorizer.configure(is_read_only=config.read_only)
    return authorizer
