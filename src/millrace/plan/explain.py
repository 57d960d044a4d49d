"""A plan as people read it: the flow of each output, how its edges run and, on request, their SQL."""

from textwrap import indent

import sqlglot

from millrace.model.errors import PipelineError, unknown
from millrace.model.explain import flow_as_text
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.plan import FusedEdge, NativeEdge, Plan, Stage
from millrace.plan.realtime import check_real_time

REAL_TIME = "real time: a Spark query from Kafka to Kafka"


def explain(pipeline: Pipeline, *, statements: bool = False, mode: str = "micro-batch") -> str:
    """The plan of a pipeline as text; with `statements`, also the SQL that its fused edges run.

    In the mode `real-time` it refuses what does not run there. Sinks run there with at-least-once.
    """
    match mode:
        case "micro-batch" | "batch":
            return as_text(compile(pipeline, PlanSettings()), statements=statements)
        case "real-time":
            check_real_time(pipeline, "at-least-once")
            return as_text(compile(pipeline, PlanSettings(fuse=False)), statements=statements, edge=REAL_TIME)
        case _:
            raise PipelineError(unknown("mode", mode, ("micro-batch", "real-time", "batch")))


def as_text(plan: Plan, *, statements: bool = False, edge: str | None = None) -> str:
    """A plan as text: its outputs, and before each of them the stages that it reads and that are no outputs.

    `edge` says how the edges run, if the plan does not.
    """
    blocks: list[list[str]] = []
    shown: dict[str, str] = {}
    named = [(stage.of, stage.label) for stage in plan.stages if stage.is_read]

    def show(stage: Stage, last: str) -> None:
        for each in (plan.stage(read.stage) for read in stage.reads):
            if not each.is_output and each.id not in shown:
                show(each, f"{'stage':<11} {each.label}")
        shown.setdefault(stage.id, stage.label)
        flow = flow_as_text(stage.of, named)
        again = next((label for known, label in flows if known == flow), None)
        flows.append((flow, stage.label))
        lines = [flow if again is None else f"{'same as':<11} {again}"]
        lines += [f"{'edge':<11} {edge or edge_as_text(plan, stage)}", last]
        blocks.append([*lines, *(_statements(plan, stage) if statements else [])])

    flows: list[tuple[str, str]] = []
    for output in plan.outputs:
        stage = plan.stage(output.stage)
        name = f"{output.kind:<11} {output.name}"
        show(stage, f"{name} ({stage.of.schema})" if output.sink is None else name)
    lines = [line for block in blocks for text in ("", *block) for line in text.split("\n")]
    return "\n".join([f"pipeline {plan.pipeline}", *(f"  {line}" if line else "" for line in lines)])


def edge_as_text(plan: Plan, stage: Stage) -> str:
    """How the edges of a stage run; one that is native makes the others native too."""
    return "; ".join(dict.fromkeys([*_own_edges(stage), *_read_edges(plan, stage)]))


def _own_edges(stage: Stage) -> list[str]:
    """How the rows of its own sources reach a stage."""
    native = [f"native: {edge.reason}" for _, edge in stage.edges if isinstance(edge, NativeEdge)]
    if native:
        return [", ".join(dict.fromkeys(native))]
    if stage.dedup is not None:
        return ["fused up to the dedup, which runs in one shard"]
    lifted = [edge.lifted for _, edge in stage.edges if isinstance(edge, FusedEdge) and edge.lifted]
    if lifted:
        return [f"fused up to the aggregate: {', '.join(dict.fromkeys(lifted))}"]
    return ["fused"] if stage.edges else []


def _read_edges(plan: Plan, stage: Stage) -> list[str]:
    """How the answers that it reads reach a stage."""
    found = []
    for read in stage.reads:
        if read.native is not None:
            found.append(f"answers through a Spark plan: {read.native}")
        elif stage.is_stateful and plan.stage(read.stage).level < stage.level:
            found.append("answers sent to the shards of its keys")
        else:
            found.append("answers in the same shards")
    return found


def _statements(plan: Plan, stage: Stage) -> list[str]:
    lines = []
    for read in stage.reads:
        for statement in read.statements:
            lines += [
                f"{'sql':<11} for the answers of {plan.stage(read.stage).label}",
                indent(_laid_out(statement), "  "),
            ]
    for source, edge in stage.edges:
        for statement in edge.statements if isinstance(edge, FusedEdge) else ():
            lines += [f"{'sql':<11} for {source}", indent(_laid_out(statement), "  ")]
    return lines


def _laid_out(statement: str) -> str:
    return sqlglot.transpile(statement, read="duckdb", write="duckdb", pretty=True)[0]
