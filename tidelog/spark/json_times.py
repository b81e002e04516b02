"""Texts of times, dates and intervals, read and written as Spark's JSON does.

Rule 1: a time is a count since 1970, never a `datetime`: Spark's years go far beyond 9999.
Rule 2: a text that Spark takes for nothing raises Misread, whatever Python could make of it.
"""

import functools
import re
import time
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

US_PER_SECOND: Final = 1_000_000
US_PER_MINUTE: Final = 60 * US_PER_SECOND
US_PER_HOUR: Final = 60 * US_PER_MINUTE
US_PER_DAY: Final = 24 * US_PER_HOUR
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
DAYS_OF_400_YEARS: Final = 146_097
OFFSET_SECONDS_MAX: Final = 18 * 3600
BLANK: Final = "".join(map(chr, [*range(0x21), *range(0x7F, 0xA0)]))
"""What Spark trims: white space and control characters."""


class Misread(ValueError):
    """A text that is no such value."""


# Calendar.


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970, of a date of the proleptic Gregorian calendar."""
    if not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise Misread(f"there is no day {year}-{month}-{day}")
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * DAYS_OF_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year, month and day, of days since 1970."""
    era, of_era = divmod(days + 719_468, DAYS_OF_400_YEARS)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


# Zones.

SHORT_ZONES: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}
"""Java's own, where three letters say a zone."""
_OFFSET: Final = re.compile(r"([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d{2}))?)?", re.ASCII)
_REGION: Final = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.ASCII)


@functools.lru_cache(maxsize=256)
def zone(text: str) -> tzinfo:
    """The zone that a text names; Misread if it names none."""
    text = SHORT_ZONES.get(text.strip(" "), text.strip(" "))
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    bare = re.sub(r"^(UTC|GMT|UT)(?=[+-])", "", text)
    if (found := _OFFSET.fullmatch(bare)) is not None:
        sign, hours, minutes, seconds = found.groups(default="0")
        if int(minutes) < 60 and int(seconds) < 60:
            total = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
            if total <= OFFSET_SECONDS_MAX:
                return timezone(timedelta(seconds=-total if sign == "-" else total))
    elif _REGION.fullmatch(text):
        try:
            return zoneinfo.ZoneInfo(text)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise Misread(f"{text!r} is no zone")


def _offset_us(at: tzinfo, days: int, of_day_us: int) -> int:
    """How far a zone is from UTC at a local time."""
    if at is UTC:
        return 0
    year, month, day = civil_from_days(days)
    year = year if 1 < year < 9999 else (400 if year < 2 else 9200) + year % 400
    seconds = of_day_us // US_PER_SECOND
    local = datetime(year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, tzinfo=at)
    found = local.utcoffset()
    assert found is not None, "every zone has an offset"
    return found // timedelta(microseconds=1)


# Times and dates.

_DATE: Final = r"([+-]?\d{4,%d})(?:-(\d{1,2})(?:-(\d{1,2})%s)?)?"
_TIME: Final = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(.*))?)?"
_TIMESTAMP: Final = re.compile(_DATE % (6, f"(?:[ T]{_TIME})?"), re.ASCII | re.DOTALL)
_TIME_ONLY: Final = re.compile(r"T?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(.*))?", re.ASCII)
_DATE_ONLY: Final = re.compile(_DATE % (7, "(?:[ T].*)?"), re.ASCII | re.DOTALL)
_DAYS: Final = re.compile(r"[+-]?\d+", re.ASCII)


def _of_day_us(hour: str | None, minute: str | None, second: str | None, part: str | None) -> int:
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if h > 23 or m > 59 or s > 59:
        raise Misread("no such time of day")
    fraction = int((part or "0")[:6].ljust(6, "0"))
    return (h * 3600 + m * 60 + s) * US_PER_SECOND + fraction


def _long(value: int) -> int:
    if not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise Misread("too far from 1970")
    return value


def timestamp_us(text: str, default_zone: tzinfo) -> int:
    """Microseconds since 1970 in UTC."""
    try:
        return _timestamp_us(text, default_zone)
    except Misread:
        if "GMT" not in text:
            raise
        return _timestamp_us(_without_gmt(text), default_zone)


def _timestamp_us(text: str, default_zone: tzinfo) -> int:
    text = text.strip(BLANK)
    if (found := _TIMESTAMP.fullmatch(text)) is not None:
        year, month, day, hour, minute, second, part, zone_text = found.groups()
        days = days_from_civil(int(year), int(month or 1), int(day or 1))
    elif (found := _TIME_ONLY.fullmatch(text)) is not None:
        hour, minute, second, part, zone_text = found.groups()
        days = -1
    else:
        raise Misread(f"{text!r} is no timestamp")
    at = zone(zone_text) if zone_text else default_zone
    of_day = _of_day_us(hour, minute, second, part)
    if found.re is _TIME_ONLY:  # of this day
        now = datetime.fromtimestamp(time.time(), at)
        days = days_from_civil(now.year, now.month, now.day)
    return _long(days * US_PER_DAY + of_day - _offset_us(at, days, of_day))


def local_timestamp_us(text: str) -> int:
    """Microseconds since 1970 by a clock without a zone."""
    found = _TIMESTAMP.fullmatch(text.strip(BLANK))
    if found is None or found[8]:
        raise Misread(f"{text!r} is no timestamp without a zone")
    year, month, day, *of_day = found.groups()[:7]
    assert year is not None, "a timestamp begins with its year"
    days = days_from_civil(int(year), int(month or 1), int(day or 1))
    return _long(days * US_PER_DAY + _of_day_us(*of_day))


def date_days(text: str) -> int:
    """Days since 1970."""
    days: int | None = None
    for candidate in (text, _without_gmt(text)):
        if (found := _DATE_ONLY.fullmatch(candidate.strip(BLANK))) is not None:
            try:
                days = days_from_civil(int(found[1]), int(found[2] or 1), int(found[3] or 1))
                break
            except Misread:
                continue
    if days is None and _DAYS.fullmatch(text):  # as Spark once wrote them
        days = int(text)
    if days is None or not -INT_MAX - 1 <= days <= INT_MAX:
        raise Misread(f"{text!r} is no date")
    return days


def _without_gmt(text: str) -> str:
    """Spark forgives a GMT, wherever it is."""
    return text.replace("GMT", "", 1)


def time_us(text: str) -> int:
    """Microseconds since midnight."""
    found = _TIME_ONLY.fullmatch(text.strip(BLANK))
    if found is None or found[5]:
        raise Misread(f"{text!r} is no time of day")
    return _of_day_us(*found.groups()[:4])


# Intervals. A type says from which field to which: 0 day, 1 hour, 2 minute, 3 second.

FIELDS: Final = ("DAY", "HOUR", "MINUTE", "SECOND")
_UNITS: Final = (US_PER_DAY, US_PER_HOUR, US_PER_MINUTE, US_PER_SECOND)
_DIGITS_MAX: Final = (9, 10, 12, 13)
_BETWEEN: Final = ("", " ", ":", ":")


@functools.lru_cache(maxsize=16)
def _interval_grammar(first: int, last: int) -> re.Pattern[str]:
    parts = []
    for field in range(first, last + 1):
        digits = rf"(\d{{1,{_DIGITS_MAX[field]}}})" if field == first else r"(\d{1,2})"
        fraction = r"(?:\.(\d{1,9}))?" if field == 3 else ""
        parts.append(("" if field == first else _BETWEEN[field]) + digits + fraction)
    body = "".join(parts)
    name = _interval_name(first, last).replace(" ", r"\s+")
    return re.compile(
        rf"(?:([+-])?{body}|INTERVAL\s+([+-])?'([+-])?{body}'\s+{name})", re.ASCII | re.IGNORECASE
    )


def _interval_name(first: int, last: int) -> str:
    return FIELDS[first] if first == last else f"{FIELDS[first]} TO {FIELDS[last]}"


def interval_us(text: str, first: int, last: int) -> int:
    """Microseconds of an interval in days, hours, minutes and seconds."""
    found = _interval_grammar(first, last).fullmatch(text.strip(BLANK))
    if found is None:
        raise Misread(f"{text!r} is no interval of {_interval_name(first, last)}")
    count = last - first + 1 + (last == 3)
    groups = found.groups()
    bare, literal = groups[1 : count + 1], groups[count + 3 :]
    negative = [groups[0], groups[count + 1], groups[count + 2]].count("-") % 2
    numbers = bare if bare[0] is not None else literal
    total = 0
    for place, field in enumerate(range(first, last + 1)):
        number = int(numbers[place])
        if place and number > (23 if field == 1 else 59):
            raise Misread(f"{text!r} has {number} of {FIELDS[field]}")
        total += number * _UNITS[field]
    if last == 3 and numbers[-1]:
        total += int(numbers[-1][:6].ljust(6, "0"))
    return _long(-total if negative else total)


def interval_text(value_us: int, first: int, last: int) -> str:
    """An interval as Spark's JSON writes it."""
    sign, rest = ("-", -value_us) if value_us < 0 else ("", value_us)
    text = ""
    for field in range(first, last + 1):
        number, rest = divmod(rest, _UNITS[field])
        text += _BETWEEN[field] if field > first else ""
        text += str(number) if field == 0 else f"{number:02}"
    if last == 3 and rest:
        text += f".{rest:06}".rstrip("0")
    return f"INTERVAL '{sign}{text}' {_interval_name(first, last)}"


# Texts.


def date_text(days: int) -> str:
    year, month, day = civil_from_days(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def timestamp_text(value_us: int, at: tzinfo | None) -> str:
    """To the millisecond, as Spark's JSON writes it; without a zone for None."""
    suffix, offset = "", 0
    if at is not None:
        if at is not UTC:
            utc_days, of_day = divmod(value_us, US_PER_DAY)
            moment = datetime(2000, 1, 1, tzinfo=UTC)
            year = civil_from_days(utc_days)[0]
            if 1 < year < 9999:
                moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=utc_days, microseconds=of_day)
            found = moment.astimezone(at).utcoffset()
            assert found is not None, "every zone has an offset"
            offset = found // timedelta(microseconds=1)
        seconds = abs(offset) // US_PER_SECOND
        hours = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
        suffix = "Z" if not offset else ("-" if offset < 0 else "+") + hours
    days, of_day = divmod(value_us + offset, US_PER_DAY)
    ms = of_day // 1000
    clock = f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"
    return f"{date_text(days)}T{clock}{suffix}"


def time_text(value_us: int) -> str:
    seconds, rest = divmod(value_us, US_PER_SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return clock + (f".{rest:06}".rstrip("0") if rest else "")
