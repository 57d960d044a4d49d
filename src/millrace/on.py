"""Triggers: when in processing time answers appear.

```python
stream.window(window.fixed("1h")).trigger(on.watermark(early=on.every("10s"), late=on.each()))
```
"""

from millrace.model.trigger import (
    after,
    all_of,
    any_of,
    default,
    each,
    elements,
    every,
    in_order,
    never,
    repeat,
    until,
    watermark,
)

__all__ = [
    "after",
    "all_of",
    "any_of",
    "default",
    "each",
    "elements",
    "every",
    "in_order",
    "never",
    "repeat",
    "until",
    "watermark",
]


def __dir__() -> list[str]:
    """Completion offers only the public names."""
    return __all__
