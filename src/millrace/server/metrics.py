"""Metrics for Prometheus: the status of pipelines, the topics of the log, and live queries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from millrace.eventlog.topics import Log
from millrace.model.duration import SECOND


@dataclass(frozen=True, slots=True)
class _Measure:
    """A metric, and its value for the status of a pipeline or of one of its outputs; None if it has none."""

    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    about: str
    value: Callable[[dict[str, Any]], float | None]


def _of_batch(name: str) -> Callable[[dict[str, Any]], float | None]:
    """A figure of the last micro-batch."""
    return lambda status: None if status.get("progress") is None else status["progress"][name]


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / SECOND


_OF_PIPELINE = (
    _Measure(
        GaugeMetricFamily,
        "millrace_pipeline_running",
        "1 if a run holds the checkpoint, else 0.",
        lambda status: status["running"],
    ),
    _Measure(
        GaugeMetricFamily,
        "millrace_pipeline_waiting",
        "1 if the run waits for a store, a log or a file system that went away, else 0.",
        lambda status: status["state"] == "waiting",
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_rows",
        "Records read; 0 again at the start of a run.",
        lambda status: status.get("rows"),
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_answers",
        "Rows written to views and sinks; 0 again at the start of a run.",
        lambda status: status.get("answers"),
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_dead_letters",
        "Dead letters; 0 again at the start of a run.",
        lambda status: status.get("dead"),
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_skipped_records",
        "Records that the checkpoint goes on without.",
        lambda status: status.get("skipped"),
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_batches",
        "Micro-batches of the checkpoint.",
        lambda status: None if (last := _of_batch("batch")(status)) is None else last + 1,
    ),
    _Measure(
        GaugeMetricFamily,
        "millrace_last_batch_timestamp_seconds",
        "When the last micro-batch ended.",
        lambda status: status.get("at") if status.get("progress") else None,
    ),
    _Measure(
        GaugeMetricFamily,
        "millrace_last_batch_duration_seconds",
        "How long the last micro-batch took.",
        _of_batch("seconds"),
    ),
    _Measure(
        GaugeMetricFamily,
        "millrace_clock_jump_seconds",
        "The last jump of the clock since the start of the run.",
        lambda status: _seconds(status.get("clock_moved")),
    ),
)
_OF_OUTPUT = (
    _Measure(
        GaugeMetricFamily,
        "millrace_watermark_timestamp_seconds",
        "The watermark, in event time.",
        lambda part: _seconds(part["watermark"]),
    ),
    _Measure(
        GaugeMetricFamily,
        "millrace_watermark_lag_seconds",
        "By how much the watermark was behind the clock at the last micro-batch.",
        lambda part: _seconds(part["lag"]),
    ),
    _Measure(GaugeMetricFamily, "millrace_open_windows", "Open windows, by key.", lambda part: part["groups"]),
    _Measure(GaugeMetricFamily, "millrace_state_bytes", "The size of the state in memory.", lambda part: part["bytes"]),
    _Measure(
        CounterMetricFamily,
        "millrace_late_rows",
        "Rows that came too late for their windows, since the first run.",
        lambda part: part["dropped"],
    ),
    _Measure(
        CounterMetricFamily,
        "millrace_errors",
        "Answers that have no value, since the first run.",
        lambda part: part.get("errors", 0),
    ),
)


_OF_LIVE = (
    (GaugeMetricFamily, "clients", "Connected clients of live queries."),
    (GaugeMetricFamily, "subscriptions", "Subscriptions to live queries."),
    (GaugeMetricFamily, "waiting_messages", "Messages that wait to be sent to clients of live queries."),
    (CounterMetricFamily, "messages", "Messages sent to clients of live queries, since the server started."),
    (CounterMetricFamily, "changes", "Changes of views that were matched with live queries, since the server started."),
)


def metrics_text(
    statuses: Sequence[dict[str, Any]], log: Log, live: Mapping[str, int], accept: str
) -> tuple[bytes, str]:
    """All metrics in the format that a client accepts, and the content type of that format.

    `statuses` are those of the pipelines, as `GET /pipelines` answers them, `live` the figures of live queries.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*_of_pipelines(statuses), *_of_topics(log, statuses), *_of_live(live)]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collected(Collector):
    """Metrics that are known already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _of_pipelines(statuses: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    labels = ["pipeline", "checkpoint"]
    of = [([status[name] for name in labels], status) for status in statuses]
    yield from (_measured(measure, labels, of) for measure in _OF_PIPELINE)
    yield from _of_batches(of, labels)
    parts = [
        ([*names, output], part)
        for names, status in of
        for output, part in ((status.get("progress") or {}).get("parts") or {}).items()
    ]
    yield from (_measured(measure, [*labels, "output"], parts) for measure in _OF_OUTPUT)


def _of_batches(of: list[tuple[list[str], dict[str, Any]]], labels: list[str]) -> Iterator[Metric]:
    """The phases and the latency of the last micro-batch of each pipeline."""
    phases = GaugeMetricFamily(
        "millrace_last_batch_phase_seconds",
        "How long the phases of the last micro-batch took; edge and panes are CPU time.",
        labels=[*labels, "phase"],
    )
    latency = GaugeMetricFamily(
        "millrace_latency_seconds",
        "From the append of the records of the last micro-batch to its commit.",
        labels=[*labels, "quantile"],
    )
    for names, status in of:
        progress = status.get("progress") or {}
        for phase, seconds in (progress.get("phases") or {}).items():
            phases.add_metric([*names, phase], seconds)
        for quantile, share in (("0.5", "p50"), ("0.99", "p99")):
            if progress.get("latency"):
                latency.add_metric([*names, quantile], progress["latency"][share])
    yield from (phases, latency)


def _of_live(live: Mapping[str, int]) -> Iterator[Metric]:
    for family, name, about in _OF_LIVE:
        metric = family(f"millrace_live_{name}", about)
        metric.add_metric([], live[name])
        yield metric


def _of_topics(log: Log, statuses: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    appended = CounterMetricFamily("millrace_topic_records", "Records appended to the topic.", labels=["topic"])
    lags = GaugeMetricFamily(
        "millrace_lag_records", "Records that a pipeline has yet to read.", labels=["topic", "pipeline"]
    )
    for topic in log.topics():
        appended.add_metric([topic.name], sum(log.ends(topic.name)))
        for group, lag in log.lag(topic.name).items():
            lags.add_metric([topic.name, group], lag)
    for status in statuses:
        for name, lag in status.get("lags", {}).items():
            lags.add_metric([name, status["pipeline"]], lag)
    yield from (appended, lags)


def _measured(measure: _Measure, labels: list[str], of: list[tuple[list[str], dict[str, Any]]]) -> Metric:
    family = measure.family(measure.name, measure.about, labels=labels)
    for values, about in of:
        value = measure.value(about)
        if value is not None:
            family.add_metric(values, value)
    return family
