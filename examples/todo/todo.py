"""A to-do list that several people share: actions come in by a topic, and the list is a view."""

from millrace import Pipeline, agg, log, on, window

actions = log("todo", schema="id STRING NOT NULL, text STRING NOT NULL, action STRING NOT NULL, at TIMESTAMP NOT NULL")

items = (
    actions.where("action IN ('add', 'done', 'undone', 'remove')")
    .event_time("at", delay="0s")
    .group_by("id")
    .window(window.all_time())
    .trigger(on.each())
    .retracting()
    .aggregate(text=agg.last("text"), action=agg.last("action"), added=agg.min("at"))
)

todo = Pipeline("todo", views={"todo_items": items})
