"""Permissions and denials as records of the metadata, and the decisions that change them.

Rule 1: a decision says only what changes: a binding that is there is not added again, and one that is
        not there is not removed.
Rule 2: a binding is a value. What is removed is what a filter took on the image that was decided on,
        one record for each, so no other binding goes with it.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from tidelog.controller.records import AclAdded, AclRemoved
from tidelog.errors import InvalidRequest, PolicyViolation
from tidelog.security.acls import BINDINGS_MAX, Acls, Binding, BindingFilter, Effect, Pattern, binding_problem
from tidelog.security.permissions import Kind, Operation
from tidelog.security.principals import Principal

if TYPE_CHECKING:
    from tidelog.controller.image import ClusterImage

LOOKED_MAX: Final = 2 * BINDINGS_MAX
"""Bindings that all filters of one request compare: they are compared in one turn of the loop."""


def binding_of(record: AclAdded | AclRemoved) -> Binding:
    """What the record is about; ValueError if no binding is."""
    return Binding(
        principal=Principal.parse(record.principal),
        host=record.host,
        operation=Operation(record.operation),
        effect=Effect(record.effect),
        kind=Kind(record.kind),
        name=record.name,
        pattern=Pattern(record.pattern),
    )


def added(binding: Binding) -> AclAdded:
    """The record that adds it."""
    return AclAdded(**_fields(binding))


def _fields(binding: Binding) -> dict[str, str]:
    return {
        "principal": str(binding.principal),
        "host": binding.host,
        "operation": binding.operation.value,
        "effect": binding.effect.value,
        "kind": binding.kind.value,
        "name": binding.name,
        "pattern": binding.pattern.value,
    }


def add_acls(image: "ClusterImage", bindings: Iterable[Binding]) -> list[AclAdded]:
    """The records that add what is not there yet."""
    wanted = [one for one in dict.fromkeys(bindings) if one not in image.acls]
    for one in wanted:
        if problem := binding_problem(one):
            raise InvalidRequest(problem)
    if len(image.acls) + len(wanted) > BINDINGS_MAX:
        raise PolicyViolation(f"a cluster has at most {BINDINGS_MAX} permissions and denials")
    return [added(one) for one in wanted]


def remove_acls(image: "ClusterImage", filters: Sequence[BindingFilter]) -> list[AclRemoved]:
    """The records that remove all that any of the filters takes."""
    return [
        AclRemoved(**_fields(one)) for one in dict.fromkeys(chain.from_iterable(taken(image.acls, filters)))
    ]


def taken(acls: Acls, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
    """What each of the filters takes; PolicyViolation where that is much to look for."""
    found, looked = [], 0
    for wanted in filters:
        candidates = acls.candidates(wanted)
        looked += len(candidates)
        if looked > LOOKED_MAX and len(filters) > 1:
            raise PolicyViolation(
                f"{len(filters)} filters that may take {LOOKED_MAX} permissions; ask for fewer at a time, or "
                "say in each which principal or name it is about"
            )
        found.append([one for one in candidates if wanted.takes(one)])
    return found
