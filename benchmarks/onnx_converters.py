"""The library jax2onnx beside our converter (`pdvf.deploy.jax_to_onnx`): the same step of an episode by both.

python benchmarks/onnx_converters.py [--out FILE] [--families F ...] [--methods M ...]

Needs jax2onnx, which pdvf does not: pip install -e '.[mujoco,export]' jax2onnx pytest. Writes
benchmarks/results/onnx_converters.json. Agents have the sizes of the preset `paper` and random weights; they play whole
episodes in JAX, and all graphs are given the same observations on one core, four rounds in turn, of which the fastest
median counts. A difference is that of an action, as a share of half its range.

`jax2onnx` is the library as it is. `jax2onnx, mended` has our eigenvectors, JAX's default where a program depends on
the platform, and And, Or and Not for `Where` of booleans. Both are given what would be ours either way: the program as
primitives of JAX, names of inputs and outputs, and memory that no action depends on left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.extend
import numpy as np
import onnx
from jax2onnx import to_onnx
from threadpoolctl import threadpool_limits

from pdvf.config.presets import preset
from pdvf.deploy.jax_to_onnx import top_eigenpair
from pdvf.deploy.onnx_graph import IR, OPSET, export_onnx
from pdvf.experiment.provenance import processor
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "deploy")]
from test_exports import Session, episodes, largest_difference  # noqa: E402

from tiny import random_agent, relaxed  # noqa: E402

ROUNDS = 4
EXPORTED = tuple(name for name, method in METHODS.items() if not method.privileged)


class Step(NamedTuple):
    """A step of an episode as our converter is given it."""

    program: Any
    inputs: list[str]
    outputs: list[str]
    wanted: set[str]


def step_of(agent: Any, family: Any) -> Step:
    """What `export_onnx` traces."""
    with mock.patch("pdvf.deploy.onnx_graph.Graph", side_effect=StopIteration) as graph:
        with contextlib.suppress(StopIteration):
            export_onnx(agent, family, {})
        return Step(*graph.call_args.args[1:])


def by_library(agent: Any, family: Any, mended: bool) -> bytes:
    """The graph that jax2onnx makes."""
    with contextlib.ExitStack() as mending:
        if mended:
            jax.clear_caches()  # of functions that were traced before
            mending.enter_context(mock.patch("jax.numpy.linalg.eigh", lambda matrix: top_eigenpair(matrix)[::-1]))
            mending.enter_context(mock.patch("jax._src.lax.control_flow.platform_dependent", default_platform))
        step = step_of(agent, family)
    # The library's own rules for Equinox, which take hold while it traces, refuse a Linear under vmap.
    function = jax.extend.core.jaxpr_as_fun(step.program)
    made = to_onnx(function, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in step.program.in_avals], opset=OPSET)
    rename(made.graph, step)
    prune(made.graph, step.wanted)
    if mended:
        replace_boolean_where(onnx.shape_inference.infer_shapes(made).graph, made.graph)
    made.ir_version = IR
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


def default_platform(*args: Any, default: Any, **others: Any) -> Any:
    """`jax.lax.platform_dependent` for a runtime that is none of JAX's platforms."""
    del others
    return default(*args)


def replace_boolean_where(typed: Any, graph: Any) -> None:
    """`Where` of booleans, which onnxruntime lacks, in a graph and its branches, by And, Or and Not."""
    kinds = {x.name: x.type.tensor_type.elem_type for x in (*typed.value_info, *typed.output)}
    nodes, helper = [], onnx.helper
    for node, same in zip(graph.node, typed.node, strict=True):
        for attribute, known in zip(node.attribute, same.attribute, strict=True):
            if attribute.HasField("g"):
                replace_boolean_where(known.g, attribute.g)
        if node.op_type != "Where" or kinds.get(node.output[0]) != onnx.TensorProto.BOOL:
            nodes.append(node)
            continue
        (which, yes, no), (out,) = node.input, node.output
        nodes.append(helper.make_node("And", [which, yes], [f"{out}.yes"]))
        nodes.append(helper.make_node("Not", [which], [f"{out}.not"]))
        nodes.append(helper.make_node("And", [f"{out}.not", no], [f"{out}.no"]))
        nodes.append(helper.make_node("Or", [f"{out}.yes", f"{out}.no"], [out]))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def rename(graph: Any, step: Step) -> None:
    """Gives inputs and outputs their names; by `input_names` the library refuses an output that is an input."""
    for value, name in zip(graph.input, step.inputs, strict=True):
        graph.node.insert(0, onnx.helper.make_node("Identity", [name], [value.name]))
        value.name = name
    for value, name in zip(graph.output, step.outputs, strict=True):
        graph.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
        value.name = name


def prune(graph: Any, wanted: set[str]) -> None:
    """Leaves out what `wanted` does not depend on, as `Graph.finish` does."""
    wanted, before, used = set(wanted), set[str](), set[str]()
    while wanted != before:
        before, used = set(wanted), set(wanted)
        for node in reversed(graph.node):
            if used & {*node.output}:
                used |= reads(node)
        wanted |= {"next." + name.removeprefix("memory.") for name in used if name.startswith("memory.")}
    for rows, keep in (
        (graph.node, lambda node: used & {*node.output}),
        (graph.input, lambda x: x.name in used),
        (graph.output, lambda x: x.name in wanted),
        (graph.initializer, lambda x: x.name in used),
        (graph.value_info, lambda x: x.name in used),
    ):
        kept = [row for row in rows if keep(row)]
        del rows[:]
        rows.extend(kept)


def reads(node: Any) -> set[str]:
    """Names that a node needs, those in its branches included."""
    branches = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner = [inside for graph in branches for inside in graph.node]
    return {*node.input, *(x.name for graph in branches for x in graph.output)}.union(*map(reads, inner))


def measure(family: str, method: str) -> dict[str, Any]:
    """One row of the table."""
    problem = Problem(preset(family, "paper"))
    made = problem.engine.family
    row: dict[str, Any] = {"family": family, "method": method}
    sessions: dict[str, Session] = {}
    with relaxed():
        agent = random_agent(problem, method)
        steps = episodes(problem, agent)
        row["steps"] = int(steps.valid.sum())
        ways = {
            "ours": lambda: export_onnx(agent, made, {}),
            "jax2onnx": lambda: by_library(agent, made, False),
            "jax2onnx, mended": lambda: by_library(agent, made, True),
        }
        for name, way in ways.items():
            began = time.perf_counter()
            try:
                graph = way()
                sessions[name] = Session(graph, threads=1)
            except Exception as error:
                row[f"{name}: failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                continue
            row[f"{name}: s to make"] = round(time.perf_counter() - began, 1)
            row[f"{name}: kB"] = round(len(graph) / 1e3)
            row[f"{name}: nodes"] = count_nodes(onnx.load_from_string(graph).graph)
            row[f"{name}: inputs"] = sorted(sessions[name].inputs)
    medians: dict[str, list[float]] = {name: [] for name in sessions}
    for name, session in [*sessions.items()] * ROUNDS:
        apart, median = play(steps, made.action, session)
        row[f"{name}: difference"] = float(f"{apart:.2g}")
        medians[name].append(median)
    row |= {f"{name}: µs": round(1e6 * min(found), 1) for name, found in medians.items()}
    same = len({tuple(row.pop(f"{name}: inputs")) for name in sessions}) == 1
    return row | {"same memory": same}


def play(steps: Any, box: Any, session: Session) -> tuple[float, float]:
    """Largest difference of an action, and the median of a step in seconds."""
    seconds = []

    def timed(observation: np.ndarray, reward: float) -> np.ndarray:
        began = time.perf_counter()
        action = session.act(observation, reward)
        seconds.append(time.perf_counter() - began)
        return action

    return largest_difference(steps, box, lambda s: session.reset(), timed), float(np.median(seconds))


def count_nodes(graph: Any) -> int:
    """Of a graph and its branches."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return len(graph.node) + sum(map(count_nodes, inner))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "onnx_converters.json")
    parser.add_argument("--families", nargs="+", default=("spaceship",))
    parser.add_argument("--methods", nargs="+", default=EXPORTED)
    given = parser.parse_args()
    rows = []
    for family, method in itertools.product(given.families, given.methods):
        with threadpool_limits(1):
            rows.append(measure(family, method))
        print(rows[-1], flush=True)
    names = ("jax", "numpy", "onnx", "onnxruntime", "jax2onnx")
    versions = {name: importlib.metadata.version(name) for name in names}
    about = {"command": shlex.join(["python", *sys.argv]), "versions": versions, "processor": processor()}
    found = {**about, "python": platform.python_version(), "benchmarks": rows}
    given.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
