"""Who the owner of a certificate is: its name, as rules map it to a principal.

Rule 1: the name is written as in RFC 2253, the most specific part first: `CN=alice,OU=teams,O=example`.
Rule 2: the first rule that fits the whole name decides. If none does, nothing was proved.
"""

# rules := rule ("," rule)*
# rule  := "DEFAULT" | "RULE:" pattern "/" replacement "/" ("L" | "U")?       ($1 is the first group)

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidelog.errors import ConfigError
from tidelog.security.principals import ANONYMOUS, NAME_CHARACTERS_MAX, USER, Principal

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:([^/]*)/([^/]*)/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\$(\d)")
_SPECIAL: Final = re.compile(r'([,+"\\<>;=])')
_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}


class _Rule(NamedTuple):
    pattern: "re.Pattern[str]"
    replacement: str
    case: str


class PrincipalRules:
    """The rules of a node (`ssl.principal.mapping.rules`)."""

    def __init__(self, text: str) -> None:
        """ConfigError with the form of a rule, if this is none."""
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {text[at:]!r} is not DEFAULT and no "
                    "RULE:PATTERN/REPLACEMENT/[L|U]"
                )
            default, pattern, replacement, case = found.groups()
            try:
                compiled = re.compile(".*" if default else pattern)
                whole = r"\g<0>" if default else _GROUP.sub(r"\\\1", replacement)
                if not default:
                    _check_groups(compiled, replacement)
            except (re.error, IndexError) as error:
                raise ConfigError(f"ssl.principal.mapping.rules: {pattern!r}: {error}") from None
            self._rules.append(_Rule(compiled, whole, case or ""))
            at = found.end()

    def principal(self, certificate: Mapping[str, Any]) -> Principal:
        """Whose certificate it is, as `ssl` tells it (`getpeercert`); ANONYMOUS if no rule fits."""
        name = distinguished_name(certificate)
        for rule in self._rules:
            found = rule.pattern.fullmatch(name)
            if found is not None:
                mapped = found.expand(rule.replacement)
                mapped = (
                    mapped.lower() if rule.case == "L" else mapped.upper() if rule.case == "U" else mapped
                )
                if 0 < len(mapped) <= NAME_CHARACTERS_MAX and mapped.isprintable():
                    return Principal(USER, mapped)
                return ANONYMOUS
        return ANONYMOUS


def _check_groups(pattern: "re.Pattern[str]", replacement: str) -> None:
    for number in _GROUP.findall(replacement):
        if int(number) > pattern.groups:
            raise IndexError(f"there is no group ${number}")


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The name of the owner of a certificate, as `ssl` tells it (`getpeercert`)."""
    parts = []
    for part in certificate.get("subject", ()):
        pairs = [f"{_SHORT.get(key, key)}={_SPECIAL.sub(_escaped, value)}" for key, value in part]
        parts.append("+".join(pairs))
    return ",".join(reversed(parts))


def _escaped(found: "re.Match[str]") -> str:
    return "\\" + found[0]
