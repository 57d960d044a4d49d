"""How many requests a second each token may make."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Counts requests by token. A token that was silent for a second may make a second's worth at once."""

    _left: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By token: how many requests were left, and when."""

    def admits(self, token: str, per_second: int, now: float) -> bool:
        """Whether a token may make a request now, which then counts.

        >>> pace = Pace()
        >>> [pace.admits("t", 2, now) for now in (0.0, 0.0, 0.0, 0.4, 0.5, 0.5)]
        [True, True, False, False, True, False]
        """
        left, at = self._left.get(token, (float(per_second), now))
        left = min(float(per_second), left + (now - at) * per_second)
        is_admitted = left >= 1
        self._left[token] = left - is_admitted, now
        return is_admitted
