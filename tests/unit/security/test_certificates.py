"""Whose certificate it is."""

import pytest

from tidelog.errors import ConfigError
from tidelog.security.certificates import PrincipalRules, distinguished_name
from tidelog.security.principals import ANONYMOUS, Principal

ALICE = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc"),),
        (("organizationalUnitName", "Teams"),),
        (("commonName", "Alice"),),
    )
}


def test_a_name_begins_with_its_most_specific_part():
    assert distinguished_name(ALICE) == r"CN=Alice,OU=Teams,O=Example\, Inc,C=DE"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", r"CN=Alice,OU=Teams,O=Example\, Inc,C=DE"),
        ("RULE:^CN=([^,]*),.*$/$1/", "Alice"),
        ("RULE:CN=(.*?),OU=(.*?),.*/$2-$1/L", "teams-alice"),
        ("RULE:^CN=([^,]*),.*$/$1/U,DEFAULT", "ALICE"),
        ("RULE:^UID=(.*)$/$1/, RULE:^CN=([^,]*),.*$/$1@example/L", "alice@example"),
    ],
)
def test_the_first_rule_that_fits_says_who_it_is(rules, name):
    assert PrincipalRules(rules).principal(ALICE) == Principal("User", name)


@pytest.mark.parametrize("rules", ["RULE:^UID=(.*)$/$1/", "RULE:.*//"])
def test_whom_no_rule_names_has_proved_nothing(rules):
    assert PrincipalRules(rules).principal(ALICE) == ANONYMOUS
    assert PrincipalRules("DEFAULT").principal({}) == ANONYMOUS


@pytest.mark.parametrize("rules", ["default", "RULE:(/x/", "RULE:a/b", "RULE:x/$1/", "DEFAULT;DEFAULT"])
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules(rules)
