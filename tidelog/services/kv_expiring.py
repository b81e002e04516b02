"""Keys whose time is up, deleted by the leader of their partition.

Rule 1: a key is deleted if its newest entry says that its time is up, and no open transaction has
        written it: it may have done so before the deletion, which would then delete that, too.
Rule 2: what must be passed over holds up nobody. A round looks at so many keys at most, and the
        next one goes on behind them; from the end it begins anew.
Rule 3: a step is one turn of the loop, and short: it looks at few keys, and reads few values.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.broker.writing import Write
from tidelog.copies.views.kv import FIRST_DUE, Change, find_due, get_entry, record_of
from tidelog.errors import BrokerError, OutcomeUnknown
from tidelog.services.kv_state import LeaderState

_KEYS_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Of values, which must be read, since the checksum covers them: about a millisecond."""
_STEPS: Final = 20
"""That find nothing to delete, in one round."""
_WRITE_SECONDS: Final = 30.0


class Expiring:
    """One round over the keys of a partition."""

    def __init__(self, state: LeaderState, broker: Broker) -> None:
        self._state = state
        self._broker = broker
        self._steps_left = _STEPS

    def go_on(self) -> bool:
        """Look at the next few keys; whether there may be more for this round."""
        state, now_ms = self._state, self._broker.host.clock.wall_ms()
        if state.is_over or state.next_expiry_ms is None or state.next_expiry_ms > now_ms:
            return False
        try:
            return self._step(now_ms)
        except BrokerError:  # too few are in sync, or the view is made again: another time
            return False

    def _step(self, now_ms: int) -> bool:
        state = self._state
        if state.catch_up() is not None or not state.is_known:
            return False  # the view is far behind: another time
        found = state.view.ask(
            partial(
                find_due, now_ms=now_ms, after=state.looked_to, most=_KEYS_AT_ONCE, bytes_max=_BYTES_AT_ONCE
            )
        )
        if not found:
            state.looked_to = FIRST_DUE
            return False
        expired: list[bytes] = []
        read = written = 0
        for at, key in found:
            written += len(key) + 100
            if expired and written > state.partition.config.max_message_bytes // 2:
                break
            state.looked_to = at
            # What the log says beyond the view, the view will know.
            if state.overlay.get(key) is not None or state.overlay.is_undecided(key):
                continue
            entry = state.view.ask(partial(get_entry, key=key))
            if entry is None:
                continue
            if entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms:
                expired.append(key)
            read += len(entry.value or b"")
            if read > _BYTES_AT_ONCE:
                break
        if expired:
            self._delete(expired, now_ms)
        else:
            self._steps_left -= 1
        return self._steps_left > 0

    def _delete(self, keys: list[bytes], now_ms: int) -> None:
        clock = self._broker.host.clock
        deadline = clock.monotonic() + _WRITE_SECONDS
        write = Write(self._state.partition, clock, copies=None, deadline=deadline)
        write.append([record_of(Change(key, None), now_ms) for key in keys])
        self._broker.spawn(_forget(write))


async def _forget(write: Write) -> None:
    with suppress(OutcomeUnknown):  # the next leader finds what is left
        await write.committed()
