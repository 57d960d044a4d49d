"""Creates, serves and drops generations of a pipeline's views."""

from collections.abc import Sequence
from dataclasses import replace

from millrace.model.errors import AGAIN, ConflictError, NotFoundError, not_found
from millrace.views.catalog import Catalog, ViewGeneration
from millrace.views.dialect import StoreConnection, quoted
from millrace.views.shape import ViewShape, check_names, differences
from millrace.views.store import GenerationState


def complete(connection: StoreConnection, pipeline: str, shapes: Sequence[ViewShape], generation: int | None) -> None:
    """Create the missing views of a generation. Refuses what `check` refuses.

    If none is served yet, a generation that does not exist is created, and served.
    """
    catalog = Catalog(connection)
    check(catalog, pipeline, shapes, generation)
    version = catalog.version()
    serving = catalog.in_state(pipeline, GenerationState.SERVING)
    if serving is None and generation not in {each.number for each in catalog.generations(pipeline)}:
        serving = catalog.add_generation(pipeline, GenerationState.SERVING, generation or 1)
    to = generation or serving
    assert to is not None
    known = of_generation(catalog, pipeline, to)
    for shape in shapes:
        if shape.name not in known:
            kept = _create(connection, ViewGeneration(shape, to, pipeline, 0, version))
            if to == serving:
                for statement in _serve(connection, kept, None, version):
                    connection.execute(statement)


def check(catalog: Catalog, pipeline: str, shapes: Sequence[ViewShape], generation: int | None) -> None:
    """Refuse invalid names, views of another pipeline, and views that a generation has with another shape."""
    _check(catalog, pipeline, shapes)
    number = catalog.in_state(pipeline, GenerationState.SERVING) if generation is None else generation
    known = {} if number is None else catalog.of_generation(pipeline, number)
    for shape in shapes:
        if shape.name in known and (changed := differences(known[shape.name].shape, shape)):
            raise ConflictError(f"view {shape.name!r} is in the store with another shape: {changed}", AGAIN)


def begin(connection: StoreConnection, pipeline: str, shapes: Sequence[ViewShape], least: int) -> int:
    """Create a new generation to fill, with a number of at least `least`; an unfinished one is dropped."""
    catalog = Catalog(connection)
    _check(catalog, pipeline, shapes)
    drop_unfinished(connection, pipeline)
    number = catalog.add_generation(pipeline, GenerationState.FILLING, least)
    for shape in shapes:
        _create(connection, ViewGeneration(shape, number, pipeline, 0, catalog.version()))
    return number


def drop_unfinished(connection: StoreConnection, pipeline: str) -> None:
    """Drop the generation that a stopped replay has not filled, if there is one."""
    catalog = Catalog(connection)
    unfinished = catalog.in_state(pipeline, GenerationState.FILLING)
    if unfinished is not None:
        catalog.set_state(pipeline, unfinished, GenerationState.DROPPED)


def serve(connection: StoreConnection, pipeline: str, generation: int, version: int) -> None:
    """Serve another generation; the one served so far is kept for rollback, and the one kept so far is dropped."""
    catalog = Catalog(connection)
    serving, previous = (
        catalog.in_state(pipeline, GenerationState.SERVING),
        catalog.in_state(pipeline, GenerationState.PREVIOUS),
    )
    new = of_generation(catalog, pipeline, generation)
    old = {} if serving is None else catalog.of_generation(pipeline, serving)
    statements = []
    for name, kept in new.items():
        statements += _serve(connection, kept, old.get(name), version)
    for name, kept in old.items():
        catalog.put(replace(kept, changes=None))
        if name not in new:
            statements += [f"DROP VIEW {quoted(name)}", f"DROP TABLE {quoted(str(kept.changes))}"]
    connection.unread(statements)
    if previous is not None:
        catalog.set_state(pipeline, previous, GenerationState.DROPPED)
    if serving is not None:
        catalog.set_state(pipeline, serving, GenerationState.PREVIOUS)
    catalog.set_state(pipeline, generation, GenerationState.SERVING)


def drop(connection: StoreConnection, pipeline: str) -> None:
    """Drop all views of a pipeline. Generation numbers, and checkpoints that filled them, cannot be used again."""
    catalog = Catalog(connection)
    known = [each.number for each in catalog.generations(pipeline) if each.state is not GenerationState.DROPPED]
    if not known:
        known_names = sorted({kept.pipeline for kept in catalog.views()})
        raise not_found("pipeline", pipeline, known_names, "millrace views lists the views")
    statements = []
    for number in known:
        for name, kept in catalog.of_generation(pipeline, number).items():
            if kept.changes is not None:
                statements += [f"DROP VIEW {quoted(name)}", f"DROP TABLE {quoted(kept.changes)}"]
                catalog.put(replace(kept, changes=None))
        catalog.set_state(pipeline, number, GenerationState.DROPPED)
    connection.unread(statements)


def clear(connection: StoreConnection) -> None:
    """Remove the tables of dropped generations."""
    catalog = Catalog(connection)
    for kept in catalog.dropped():
        connection.unread([f"DROP TABLE {kept.tables(connection.dialect).data}"], patience=1)
        catalog.remove(kept)


def target(catalog: Catalog, pipeline: str, generation: int | None) -> int:
    """The number of a generation; the default is the served one."""
    number = catalog.in_state(pipeline, GenerationState.SERVING) if generation is None else generation
    if number is None:
        raise NotFoundError(f"the store has no views of pipeline {pipeline!r}", "open() makes them")
    return number


def of_generation(catalog: Catalog, pipeline: str, generation: int) -> dict[str, ViewGeneration]:
    """The views of a generation, by name. Refuses an unknown or dropped generation."""
    known = {each.number: each.state for each in catalog.generations(pipeline)}
    if generation not in known:
        raise not_found("generation", generation, map(str, known), "name one of them")
    if known[generation] is GenerationState.DROPPED:
        raise ConflictError(
            f"generation {generation} of pipeline {pipeline!r} was dropped by a replay or by somebody",
            "run the pipeline again: it continues with the served generation",
        )
    return catalog.of_generation(pipeline, generation)


def _create(connection: StoreConnection, kept: ViewGeneration) -> ViewGeneration:
    for statement in kept.tables(connection.dialect).create():
        connection.execute(statement)
    Catalog(connection).put(kept)
    return kept


def _serve(connection: StoreConnection, kept: ViewGeneration, old: ViewGeneration | None, version: int) -> list[str]:
    """Prepare a view to be served from this generation; returns the statements that complete it.

    The log of changes continues if the columns are the same; otherwise a new one is begun.
    """
    tables, catalog = kept.tables(connection.dialect), Catalog(connection)
    drop = [] if old is None else [f"DROP VIEW {quoted(kept.shape.name)}"]
    if old is not None and old.changes is not None and old.shape.columns == kept.shape.columns:
        statements = old.tables(connection.dialect).log_difference(old.changes, tables)
        differing = sum(connection.execute(statement, (version,)).rowcount for statement in statements)
        changed = version if differing else old.changed
        catalog.put(replace(kept, changes=old.changes, since=old.since, changed=changed))
        if connection.dialect.replaces_views:
            return [f"CREATE OR REPLACE {tables.create_view()}"]
        return [*drop, f"CREATE {tables.create_view()}"]
    changes = f"{kept.shape.name}__{kept.generation}_changes"
    for statement in tables.create_changes(changes):
        connection.execute(statement)
    catalog.put(replace(kept, changes=changes, since=version, changed=version))
    forget = [] if old is None or old.changes is None else [f"DROP TABLE {quoted(old.changes)}"]
    return [*drop, f"CREATE {tables.create_view()}", *forget]


def _check(catalog: Catalog, pipeline: str, shapes: Sequence[ViewShape]) -> None:
    """Refuse invalid names, and views that belong to another pipeline."""
    check_names(shapes)
    known = {kept.shape.name.lower(): kept for kept in catalog.views()}
    for shape in shapes:
        kept = known.get(shape.name.lower())
        if kept is None:
            continue
        if kept.pipeline != pipeline:
            raise ConflictError(
                f"view {shape.name!r} of the store belongs to pipeline {kept.pipeline!r}, not to {pipeline!r}",
                f"rename it, use another store, or drop the other views: millrace views drop {kept.pipeline}",
            )
        if kept.shape.name != shape.name:
            raise ConflictError(
                f"the store has a view {kept.shape.name!r} already", f"call {shape.name!r} something else"
            )
