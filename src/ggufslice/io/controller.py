"""How many requests to keep in flight: a pure state machine without a clock.

Fixed numbers fail both ways: one connection is slow where each is limited, dozens make some servers and edges collapse. So
this starts low and climbs while climbing pays.
"""

from __future__ import annotations

import attrs

__all__ = ["Controller"]

_START = 4
_WORTH = 1.05  # a level is kept when it is so many times as fast as the one below
_COLLAPSED = 0.25  # of the best rate seen
_COLLAPSE_SECONDS = 10.0
_BEST_SECONDS = 2.0  # over which the best rate is taken, so that no burst sets it
_WINDOW_BYTES = 8 << 20  # a window is judged when it has so many bytes and some time, or
_WINDOW_SECONDS = 4.0  # after so long
_RAMP_SECONDS, _STEADY_SECONDS = 0.1, 0.5  # the time that a window of enough bytes needs
_PATIENCE_SECONDS = 1.5  # for which a new level may show what it is worth: new connections start slowly
_HOLD_SECONDS, _LONG_HOLD_SECONDS = 5.0, 30.0  # without a probe: after a step back, after a collapse


@attrs.define
class _Window:
    """Bytes over time."""

    n_bytes: int = 0
    seconds: float = 0.0

    def add(self, n_bytes: int, seconds: float) -> None:
        self.n_bytes += n_bytes
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.n_bytes / self.seconds


@attrs.define
class Controller:
    """Seek the fewest requests in flight that give the best rate.

    Doubles while that pays, then goes up by one at a time. A level that is not 5 % faster than the one below in any of its
    windows of measurement is taken back, and that one held for 5 s. A server that says "too many" halves the level, and so
    does a rate that stays below a quarter of the best one for 10 s.

    Parameters
    ----------
    ceiling
        The most requests in flight.
    """

    ceiling: int = attrs.field(validator=attrs.validators.ge(1))
    target: int = attrs.field(init=False)
    _best: float = attrs.field(init=False, default=0.0)
    _below: tuple[int, float] | None = attrs.field(init=False, default=None)  # the level that we came from, and its rate
    _rate: float = attrs.field(init=False, default=0.0)  # the best window of this level: disturbances only slow down
    _measured: float = attrs.field(init=False, default=0.0)  # seconds at this level
    _ramping: bool = attrs.field(init=False, default=True)
    _settling: bool = attrs.field(init=False, default=True)
    _hold: float = attrs.field(init=False, default=0.0)
    _collapsed: float = attrs.field(init=False, default=0.0)
    _window: _Window = attrs.field(init=False, factory=_Window)
    _long: _Window = attrs.field(init=False, factory=_Window)

    def __attrs_post_init__(self) -> None:
        self.target = min(_START, self.ceiling)

    def observe(self, n_bytes: int, seconds: float, *, throttled: bool = False) -> int:
        """Take in what happened since the last call, and return how many requests to keep in flight.

        Parameters
        ----------
        n_bytes
            Bytes that arrived.
        seconds
            Time since the last call. The caller stops calling when it has no more work for every connection.
        throttled
            Whether a server said that there are too many requests (429 or 503).
        """
        self._hold = max(0.0, self._hold - seconds)
        slow = n_bytes < _COLLAPSED * self._best * seconds
        self._collapsed = self._collapsed + seconds if slow else 0.0
        self._long.add(n_bytes, seconds)
        if self._long.seconds >= _BEST_SECONDS:
            self._best = max(self._best, self._long.rate)
            self._long = _Window()
        if throttled:
            return self._back_off(_HOLD_SECONDS)
        if self._collapsed > _COLLAPSE_SECONDS:
            return self._back_off(_LONG_HOLD_SECONDS)
        if self._settling:
            # What arrives just after a change still belongs to the level before.
            self._settling = False
            return self.target
        window = self._window
        window.add(n_bytes, seconds)
        enough = window.n_bytes >= _WINDOW_BYTES and window.seconds >= (_RAMP_SECONDS if self._ramping else _STEADY_SECONDS)
        if window.n_bytes and (enough or window.seconds >= _WINDOW_SECONDS):
            return self._judge(window)
        return self.target

    def _judge(self, window: _Window) -> int:
        self._rate = max(self._rate, window.rate)
        self._measured += window.seconds
        self._window = _Window()
        if self._below and self._rate < _WORTH * self._below[1]:
            if self._measured < _PATIENCE_SECONDS:
                return self.target
            self._ramping = False
            self._hold = _HOLD_SECONDS
            return self._go(self._below[0], None)
        self._below = None
        if self._hold or self.target == self.ceiling:
            self._rate = 0.0  # a level to probe from is measured when the probe is made
            return self.target
        return self._go(self.target * 2 if self._ramping else self.target + 1, (self.target, self._rate))

    def _back_off(self, hold: float) -> int:
        self._ramping = False
        self._hold = hold
        self._collapsed = 0.0
        return self._go(self.target // 2, None)

    def _go(self, target: int, below: tuple[int, float] | None) -> int:
        self.target = min(max(1, target), self.ceiling)
        self._below = below
        self._settling = True
        self._rate = self._measured = 0.0
        self._window = _Window()
        return self.target
