"""What it costs to check a value by a JSON Schema, before it is checked.

A schema of a few lines can ask for 2 to the power of n checks: each of n parts is a choice between
the next one and the next one again. Nobody stops the validator once it has begun.

Rule 1: a schema whose parts, each counted as often as it can be reached, are few costs no look at
        its values. Of others, each value's checks are counted, and too many are refused.
Rule 2: a part and a place in the value are counted once and remembered: so counting is cheap where
        checking is not. The validator itself remembers only parts that are inside of themselves.
        All choices are counted, also those that it leaves out.
Rule 3: a reference that cannot be followed here, such as one to a standard's own schema, is one part.
Rule 4: to know what is left over (`unevaluated…`) the validator goes again through all that applies
        to the same value, and a pattern that looks around goes back and forth in a text: both are
        counted as what they cost.
Rule 5: a value is compared with one choice of an `enum` after the other, but for texts and small whole
        numbers, and a pattern that repeats what repeats goes through all its states at each character.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from tidelog.schemas.problems import DoesNotFit, SchemaProblem

PARTS_MAX: Final = 1000
FREE: Final = 1_000_000
"""Checks of one value, about a quarter of a second."""
PER_PLACE: Final = 100
AGAIN: Final = 3
"""How often all that applies to a value is gone through where what is left over counts."""
BACKTRACKS_MAX: Final = 10_000
"""Steps back of a pattern in one text, for which the validator gives up: it is no match then."""
BACKTRACKING: Final = 500
"""Checks that such a pattern costs."""
PATTERNS_MAX: Final = 1024
COMPARING: Final = 2
"""Checks that it takes to compare two numbers."""
STATES_PER_CHECK: Final = 36
STATES_FREE: Final = 100 * STATES_PER_CHECK
"""Of a pattern, of which no text is refused for its length."""
STATES_MAX: Final = 10**9
DIGITS_MAX: Final = 10
"""Of how often a pattern repeats something: more is more than STATES_MAX."""
STATES_TOTAL_MAX: Final = 2_000_000
"""Of all patterns of a schema, for which a validator sets some 200 MB aside."""
LETTERS: Final = 100
"""States that it takes to know the letters of the world."""
MANY_CHARACTERS: Final = 10
SMALL_INT: Final = 2**63
LEFT_OVER: Final = ("unevaluatedProperties", "unevaluatedItems")
_LOOKS_AROUND: Final = re.compile(r"\(\?[=!<>(]|\\[1-9kKG]|[*+?}]\+")
"""Beyond what a pattern of linear time may have."""
_TOKEN: Final = re.compile(
    r"(?P<letters>\\[pP]\{[^}]*\})|\\.|\[(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.",
    re.DOTALL,
)
_ONE_LENGTH: Final = re.compile(r"\^(?:\\[dDwWsS]|\[[^\]\\]*(?:\\.[^\]\\]*)*\]|\.)\{\d+(?:,\d*)?\}\$?")
"""How long a text of some characters may be: the matcher is in one state at each."""

HERE: Final = ("not", "if", "then", "else")
HERE_MANY: Final = ("allOf", "anyOf", "oneOf")
HERE_NAMED: Final = ("dependentSchemas", "dependencies")
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
EACH_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
EACH_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
BELOW_NAMED: Final = ("properties", "patternProperties")


class Choices(NamedTuple):
    """What a part compares values with: how many choices of each kind, and the values in them."""

    numbers: int
    lists: int
    in_lists: int
    objects: int
    in_objects: int


class Costs:
    """Counts the checks of values by one schema; `others` are those that it refers to, by name."""

    def __init__(self, root: Any, others: dict[str, Any]) -> None:
        self._root = root
        self._roots: dict[int, Any] = {}
        """Of each part that is an object, the whole that it is in."""
        self._named: dict[str, Any] = dict(others)
        self._has_slow_pattern = False
        self._choices: dict[int, Choices] = {}
        for whole in (root, *others.values()):
            self._index(whole)
        self.recursive: set[int] = set()
        self.is_large = self._parts(root, {}, set()) > PARTS_MAX or self._has_slow_pattern

    def check(self, value: Any) -> None:
        """DoesNotFit, if checking a value would take too long."""
        if self.is_large:
            _Count(self, FREE + PER_PLACE * _places(value)).cost(self._root, value)

    def _index(self, whole: Any) -> None:
        left = [whole]
        while left:
            one = left.pop()
            if isinstance(one, dict):
                self._roots[id(one)] = whole
                self._has_slow_pattern = self._has_slow_pattern or any(map(is_slow, patterns(one)))
                for word in ("$id", "id", "$anchor", "$dynamicAnchor"):
                    if isinstance(one.get(word), str):
                        self._named.setdefault(one[word].rstrip("#"), one)
                left += one.values()
            elif isinstance(one, list):
                left += one

    def _parts(self, part: Any, known: dict[int, int], around: set[int]) -> int:
        """How many parts can be reached, each as often; one that this is inside of is one more."""
        if not isinstance(part, dict):
            return 1
        if id(part) in around:
            self.recursive.add(id(part))
            return 1
        if id(part) not in known:
            around.add(id(part))
            choices = self.choices(part)
            found, again = 1 + choices.numbers + choices.in_lists + choices.in_objects, again_of(part)
            for times, some in ((again, self.here(part)), (1, self._inside(part))):
                for one in some:
                    found += times * self._parts(one, known, around)
                    if found > PARTS_MAX:
                        break
            around.discard(id(part))
            known[id(part)] = found
        return known[id(part)]

    def _inside(self, part: dict[str, Any]) -> Iterator[Any]:
        for word in ("propertyNames", *EACH_MEMBER):
            yield part.get(word)
        for word in (*EACH_ITEM, "prefixItems"):
            yield from _listed(part.get(word))
        for word in BELOW_NAMED:
            yield from _values(part.get(word))

    def choices(self, part: dict[str, Any]) -> Choices:
        found = self._choices.get(id(part))
        if found is None:
            each = [*_listed(part.get("enum")), part.get("const")]
            lists = [one for one in each if isinstance(one, list)]
            objects = [one for one in each if isinstance(one, dict)]
            found = self._choices[id(part)] = Choices(
                sum(map(_is_slow_number, each)),
                len(lists),
                sum(map(_places, lists)),
                len(objects),
                sum(map(_places, objects)),
            )
        return found

    def here(self, part: dict[str, Any]) -> Iterator[Any]:
        """The parts that apply to the same value."""
        for word in REFERENCES:
            if isinstance(part.get(word), str):
                yield self._resolved(part[word], part)
        for word in HERE:
            yield part.get(word)
        for word in HERE_MANY:
            yield from _listed(part.get(word))
        for word in HERE_NAMED:
            yield from _values(part.get(word))

    def _resolved(self, reference: str, part: dict[str, Any]) -> Any:
        address, _, fragment = reference.partition("#")
        found = self._roots.get(id(part), self._root)
        if address:
            last = address.rpartition("/")[2]
            names = (name for name in self._named if name.rpartition("/")[2] == last)
            found = self._named.get(address) or self._named.get(next(names, ""))
        if fragment and not fragment.startswith("/"):
            return self._named.get(fragment)
        for step in unquote(fragment).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                found = found.get(step) if isinstance(found, dict) else None
        return found


class _Count:
    """The count of one value's checks."""

    def __init__(self, schema: Costs, most: int) -> None:
        self._schema, self._max = schema, most
        self._known: dict[tuple[int, int], int] = {}
        self._places: dict[int, int] = {}

    def cost(self, part: Any, value: Any) -> int:
        if not isinstance(part, dict):
            return 1
        key = id(part), id(value)
        if key in self._known and key[0] in self._schema.recursive:
            return 1
        if key not in self._known:
            self._known[key] = 1  # while it is counted
            self._known[key] = self._sum(part, value)
        found = self._known[key]
        if found > self._max or len(self._known) > self._max:
            raise DoesNotFit(f"checking it by its JSON schema would take more than {self._max} steps")
        return found

    def _sum(self, part: dict[str, Any], value: Any) -> int:
        found, again = 1 + self._comparing(self._schema.choices(part), value), again_of(part)
        for one in self._schema.here(part):
            found += again * self.cost(one, value)
        for times, one, below in _below(part, value):
            found += times * self.cost(one, below)
            if found > self._max:
                break
        return found

    def _comparing(self, choices: Choices, value: Any) -> int:
        """What it costs to compare a value with the choices that a part has."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return COMPARING * choices.numbers
        some, most = 0, 0
        if isinstance(value, list):
            some, most = choices.lists, choices.in_lists
        elif isinstance(value, dict):
            some, most = choices.objects, choices.in_objects
        if not some:
            return 0
        if id(value) not in self._places:
            self._places[id(value)] = _places(value)
        return min(some * self._places[id(value)], most)


def _below(part: dict[str, Any], value: Any) -> Iterator[tuple[int, Any, Any]]:
    """What applies to a value's own text, names and members: how often, the part, and to what."""
    if isinstance(value, str):
        yield from ((_matching(one, value), None, value) for one in patterns(part) if is_slow(one))
    elif isinstance(value, dict):
        each = [part[word] for word in EACH_MEMBER if isinstance(part.get(word), dict)]
        each += _values(part.get("patternProperties"))
        slow = [one for one in patterns(part) if is_slow(one)]
        named, names = part.get("properties"), part.get("propertyNames")
        for name, below in value.items():
            if isinstance(named, dict) and name in named:
                yield 1, named[name], below
            if isinstance(names, dict):
                yield 1, names, name
            for one in slow:
                yield _matching(one, name), None, name
            for one in each:
                yield 1, one, below
    elif isinstance(value, list):
        each = [one for word in EACH_ITEM for one in _listed(part.get(word)) if isinstance(one, dict)]
        each += _listed(part.get("prefixItems"))
        for below in value if each else ():
            for one in each:
                yield 1, one, below


def again_of(part: dict[str, Any]) -> int:
    return AGAIN if any(word in part for word in LEFT_OVER) else 1


def patterns(part: dict[str, Any]) -> list[str]:
    """The patterns of a part, for a text or for the names of members."""
    names = part.get("patternProperties")
    given = [part.get("pattern"), *(names if isinstance(names, dict) else ())]
    return [one for one in given if isinstance(one, str)]


@lru_cache(PATTERNS_MAX)
def looks_around(pattern: str) -> bool:
    return _LOOKS_AROUND.search(pattern) is not None


def check_patterns(wholes: Iterable[Any]) -> None:
    """SchemaProblem, if the matchers of all patterns would take too much memory."""
    left, total = list(wholes), 0
    while left:
        one = left.pop()
        if isinstance(one, dict):
            total += sum(_states(each, letters=LETTERS, many=MANY_CHARACTERS) for each in patterns(one))
            left += one.values()
        elif isinstance(one, list):
            left += one
        if total > STATES_TOTAL_MAX:
            raise SchemaProblem(
                f"its patterns have more than {STATES_TOTAL_MAX} states: they repeat too often"
            )


@lru_cache(PATTERNS_MAX)
def states(pattern: str) -> int:
    """About how many states a matcher of a pattern has, if it can be in many at once."""
    return 1 if _ONE_LENGTH.fullmatch(pattern) else _states(pattern)


def _states(pattern: str, *, letters: int = 1, many: int = 1) -> int:
    sizes, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            sizes.append(0)
            continue
        if token["least"]:
            digits = token["most"] or token["least"]
            times = max(int(digits), 1) if len(digits) < DIGITS_MAX else STATES_MAX
            last, more = last * times, last * (times - 1)
        elif token["close"] and len(sizes) > 1:
            last = more = sizes.pop()
        else:
            last = more = letters if token["letters"] else many if token[0][:2] in (".", "[^") else 1
        sizes[-1] += more
        if sizes[-1] > STATES_MAX:
            return STATES_MAX
    return sum(sizes)


def is_slow(pattern: str) -> bool:
    """Whether a text is not matched in a time that is nothing to speak of."""
    return looks_around(pattern) or states(pattern) > STATES_FREE


def _matching(pattern: str, text: str) -> int:
    """What it costs to match a text by a slow pattern."""
    wide = max(states(pattern) - STATES_FREE, 0) // STATES_PER_CHECK
    return BACKTRACKING * looks_around(pattern) + wide * len(text)


def _is_slow_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) >= SMALL_INT)


def _places(value: Any) -> int:
    """How many values there are in one, with itself."""
    left = [value]
    for one in left:
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return len(left)


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _values(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, dict) else []
