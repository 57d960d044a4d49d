"""A plan as people read it: the flow of each output, how its edges run and, on request, their SQL."""

from textwrap import indent

import sqlglot

from millrace.model.explain import flow_as_text
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import PlanSettings, compile
from millrace.plan.plan import FusedEdge, NativeEdge, Plan, Stage


def explain(pipeline: Pipeline, *, statements: bool = False) -> str:
    """The plan of a pipeline as text; with `statements`, also the SQL that its fused edges run."""
    return as_text(pipeline, compile(pipeline, PlanSettings()), statements=statements)


def as_text(pipeline: Pipeline, plan: Plan, *, statements: bool = False) -> str:
    """A plan as text, beside the flow of the pipeline that it was compiled from."""
    lines = [f"pipeline {plan.pipeline}"]
    shown: dict[str, str] = {}
    for output in plan.outputs:
        stage = plan.stage(output.stage)
        flow = flow_as_text(stage.of)
        name = f"{output.kind:<11} {output.name}"
        lines.append("")
        if flow in shown:
            lines.append(f"{'same as':<11} {shown[flow]}")
        else:
            lines.append(flow)
            shown[flow] = f"{output.kind} {output.name}"
        lines.append(f"{'edge':<11} {edge_as_text(plan, stage)}")
        lines.append(f"{name} ({stage.of.schema})" if output.sink is None else name)
        if statements:
            lines += _statements(plan, stage)
    return "\n".join([lines[0], *(f"  {line}" if line else "" for text in lines[1:] for line in text.split("\n"))])


def edge_as_text(plan: Plan, stage: Stage) -> str:
    """How the edges of a stage run; one that is native makes the others native too."""
    if stage.reads:
        above = [plan.stage(each.stage) for each in stage.reads]
        shared = all(each.level == stage.level for each in above)
        where = "in the same shards" if shared or stage.query is None else "sent on to the shards of its keys"
        return f"{'; '.join(dict.fromkeys(edge_as_text(plan, each) for each in above))}; then {where}"
    native = [f"native: {edge.reason}" for _, edge in stage.edges if isinstance(edge, NativeEdge)]
    if native:
        return ", ".join(dict.fromkeys(native))
    if stage.dedup is not None:
        return "fused up to the dedup, which runs in one shard"
    lifted = [edge.lifted for _, edge in stage.edges if isinstance(edge, FusedEdge) and edge.lifted]
    return f"fused up to the aggregate: {', '.join(dict.fromkeys(lifted))}" if lifted else "fused"


def _statements(plan: Plan, stage: Stage) -> list[str]:
    lines = []
    for each in stage.reads:
        lines += _statements(plan, plan.stage(each.stage))
        for statement in each.statements:
            lines += [f"{'sql':<11} for the answers of {each.stage}", indent(_laid_out(statement), "  ")]
    for source, edge in stage.edges:
        for statement in edge.statements if isinstance(edge, FusedEdge) else ():
            lines += [f"{'sql':<11} for {source}", indent(_laid_out(statement), "  ")]
    return lines


def _laid_out(statement: str) -> str:
    return sqlglot.transpile(statement, read="duckdb", write="duckdb", pretty=True)[0]
