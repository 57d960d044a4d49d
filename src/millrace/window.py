"""Windows: where in event time a query groups its elements.

```python
stream.window(window.fixed("1h"), lateness="1d")
```
"""

from millrace.model.window import all_time, calendar, count, custom, fixed, session, sliding

__all__ = ["all_time", "calendar", "count", "custom", "fixed", "session", "sliding"]


def __dir__() -> list[str]:
    """Completion offers only the public names."""
    return __all__
