"""The columns that decide in which shard a stage keeps the rows of a key."""

from millrace.plan.plan import Plan, Stage


def placed_by(plan: Plan, stage: Stage) -> tuple[str, ...] | None:
    """The columns of a stage's state, in the order in which they are hashed; None if one shard has all of it.

    A stage that reads the answers of another in the same shard is where that other one is: by those of its keys that
    are the keys of the other, unchanged.
    """
    if stage.join is not None:
        return tuple(f"k{number}" for number in range(len(stage.join.spec.on)))
    assert stage.query is not None or stage.dedup is not None
    names = _names(plan, stage)
    if names is None or stage.query is None:
        return None
    keys = dict(zip(stage.query.keys, stage.query.key_columns, strict=True))
    return tuple(keys[name] for name in names)


def _names(plan: Plan, stage: Stage) -> tuple[str, ...] | None:
    if stage.dedup is not None:
        return None
    if stage.join is not None:
        return tuple(stage.join.spec.on)
    above = [plan.stage(each.stage) for each in stage.reads]
    if len(above) == 1 and not stage.edges and above[0].level == stage.level:
        return _names(plan, above[0])
    assert stage.query is not None
    return tuple(stage.query.keys)
