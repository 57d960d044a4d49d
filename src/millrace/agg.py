"""Aggregates: what a query computes for each key and window.

```python
stream.window(window.fixed("1h")).aggregate(plays=agg.count(), total=agg.sum("ms"))
```
"""

from millrace.model.aggregate import (
    collect,
    collect_set,
    count,
    count_if,
    first,
    fold,
    last,
    mean,
    stddev,
    top_k,
    variance,
)
from millrace.model.aggregate import max_ as max
from millrace.model.aggregate import min_ as min
from millrace.model.aggregate import sum_ as sum
from millrace.model.sketch import approx_distinct, approx_quantile, approx_top_k, second_moment

__all__ = [
    "approx_distinct",
    "approx_quantile",
    "approx_top_k",
    "collect",
    "collect_set",
    "count",
    "count_if",
    "first",
    "fold",
    "last",
    "max",
    "mean",
    "min",
    "second_moment",
    "stddev",
    "sum",
    "top_k",
    "variance",
]


def __dir__() -> list[str]:
    """Completion offers only the public names."""
    return __all__
