"""From a JAX program to the nodes of an ONNX graph, one or a few for each operation.

ONNX lacks eigenvectors, which the choice of z_pi needs: `top_eigenpair` squares the matrix instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.validation import ConfigError

SQUARINGS = 24
"""An eigenvalue that is smaller by one part in a million has died out by then."""
Value = np.ndarray | str
"""A constant, or the name of a tensor in the graph."""
SAME = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow", "neg": "Neg"},
    **{"abs": "Abs", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "sqrt": "Sqrt", "sin": "Sin"},
    **{"cos": "Cos", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "erf": "Erf", "and": "And", "or": "Or"},
    **{"not": "Not", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
}
"""Operations that ONNX has under another name."""
INSIDE = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat")
"""Calls of a program inside a program."""


class Graph:
    """Nodes and constants of a program, and what it needs of its inputs and outputs."""

    def __init__(self, onnx: Any, program: Any, inputs: list[str], outputs: list[str], wanted: set[str]):
        self._onnx, self._nodes, self._constants, self._count = onnx, [], {}, 0
        known = zip((*inputs, *outputs), (*program.jaxpr.invars, *program.jaxpr.outvars), strict=True)
        self._info = {name: self._typed(name, var.aval) for name, var in known}
        found = self.run(program.jaxpr, program.consts, inputs)
        self._name_outputs(outputs, found)
        self._inputs, self._outputs, self._wanted = inputs, outputs, wanted

    def finish(self, title: str) -> Any:
        """The graph with what `wanted` depends on: a part of the memory that nothing depends on is left out."""
        wanted, before, used = set(self._wanted), set[str](), set[str]()
        while wanted != before:
            before, used = set(wanted), set(wanted)
            for node in reversed(self._nodes):
                if used & {*node.output}:
                    used |= _reads(node)
            wanted |= {"next." + name.removeprefix("memory.") for name in used if name.startswith("memory.")}
        nodes = [node for node in self._nodes if used & {*node.output}]
        inputs = [self._info[name] for name in self._inputs if name in used]
        outputs = [self._info[name] for name in self._outputs if name in wanted]
        constants = [tensor for name, tensor in self._constants.items() if name in used]
        return self._onnx.helper.make_graph(nodes, title, inputs, outputs, constants)

    def run(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Value]) -> list[Value]:
        """Adds the nodes of a program for the values of its inputs; the values of its outputs."""
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
        known |= dict(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Value:
            return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            given = [read(atom) for atom in equation.invars]
            made = self._convert(equation, given)
            known |= dict(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _convert(self, equation: Any, given: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in INSIDE:
            inside = params.get("jaxpr") or params.get("call_jaxpr")
            return self.run(inside.jaxpr, inside.consts, given)
        if not any(isinstance(x, str) for x in given):  # known now
            found = equation.primitive.bind(*map(jnp.asarray, given), **params)
            return [np.asarray(x) for x in (found if equation.primitive.multiple_results else [found])]
        if name in SAME:
            return [self.node(SAME[name], *given)]
        if name not in RULES:
            raise ConfigError(f"the agent computes {name!r}, which has no rule for ONNX: export it for NumPy instead")
        shapes = [atom.aval.shape for atom in equation.invars]
        after = [var.aval for var in equation.outvars]
        return _list(RULES[name](_Call(self, given, shapes, after, params)))

    def node(self, kind: str, *given: Value, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; the name of its output, or a list of them."""
        names = [self._new() for _ in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, [self._name(x) for x in given], names, **attributes))
        return names[0] if outputs == 1 else names

    def cast(self, x: Value, dtype: Any) -> Value:
        """As another type."""
        return self.node("Cast", x, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def inside(self, function: Callable[..., Any], shape: tuple[int, ...], *given: Value) -> list[Value]:
        """Adds the nodes of a JAX function of one array."""
        program = jax.make_jaxpr(function)(jnp.zeros(shape))
        return self.run(program.jaxpr, program.consts, given)

    def branch(self, program: Any, given: Sequence[Value]) -> Any:
        """A program as a graph of its own, which may read what is known outside it."""
        outside, self._nodes = self._nodes, []
        outputs = [self._new() for _ in program.jaxpr.outvars]
        self._name_outputs(outputs, self.run(program.jaxpr, program.consts, given))
        infos = [self._typed(name, var.aval) for name, var in zip(outputs, program.jaxpr.outvars, strict=True)]
        graph = self._onnx.helper.make_graph(self._nodes, self._new(), [], infos)
        self._nodes = outside
        return graph

    def _name_outputs(self, names: list[str], values: list[Value]) -> None:
        for name, value in zip(names, values, strict=True):
            self._nodes.append(self._onnx.helper.make_node("Identity", [self._name(value)], [name]))

    def _typed(self, name: str, aval: Any) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(aval.dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, aval.shape)

    def _name(self, value: Value) -> str:
        if isinstance(value, str):
            return value
        name = self._new()
        self._constants[name] = self._onnx.numpy_helper.from_array(
            np.ascontiguousarray(value).reshape(value.shape), name
        )
        return name

    def _new(self) -> str:
        self._count += 1
        return f"x{self._count}"


def _reads(node: Any) -> set[str]:
    """Names that a node needs, those in its branches included."""
    inner = [inside for attribute in node.attribute for inside in attribute.g.node]
    outputs = {value.name for attribute in node.attribute for value in attribute.g.output}
    return {*node.input, *outputs}.union(*map(_reads, inner))


def _numbers(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


class _Call(NamedTuple):
    """An operation that ONNX has no single name for."""

    graph: Graph
    given: list[Value]
    shapes: list[tuple[int, ...]]  # of what is given
    after: list[Any]  # shapes and types of what it makes
    params: dict[str, Any]

    def node(self, kind: str, *given: Value, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node."""
        return self.graph.node(kind, *given, outputs=outputs, **attributes)


def _reshape(call: _Call) -> Value:
    return call.node("Reshape", call.given[0], _numbers(call.after[0].shape), allowzero=1)


def _broadcast(call: _Call) -> Value:
    ones = np.ones(len(call.after[0].shape), np.int64)
    ones[list(call.params["broadcast_dimensions"])] = call.shapes[0]
    return call.node("Expand", call.node("Reshape", call.given[0], ones), _numbers(call.after[0].shape))


def _slice(call: _Call) -> Value:
    starts, ends = _numbers(call.params["start_indices"]), _numbers(call.params["limit_indices"])
    steps = _numbers(call.params["strides"] or [1] * len(starts))
    return call.node("Slice", call.given[0], starts, ends, _numbers(range(len(starts))), steps)


def _split(call: _Call) -> list[Value]:
    sizes = _numbers(call.params["sizes"])
    return _list(call.node("Split", call.given[0], sizes, outputs=len(sizes), axis=call.params["axis"]))


def _select(call: _Call) -> Value:
    which, no, yes = call.given
    if call.after[0].dtype == bool:  # onnxruntime has no Where for these
        return call.node("Or", call.node("And", which, yes), call.node("And", call.node("Not", which), no))
    return call.node("Where", which, yes, no)


def _clamp(call: _Call) -> Value:
    low, x, high = call.given
    return call.node("Min", call.node("Max", x, low), high)


def _reduce(kind: str) -> Callable[[_Call], Value]:
    return lambda call: call.node(f"Reduce{kind}", call.given[0], _numbers(call.params["axes"]), keepdims=0)


def _reduce_bool(kind: str) -> Callable[[_Call], Value]:
    def rule(call: _Call) -> Value:
        return call.graph.cast(_reduce(kind)(call._replace(given=[call.graph.cast(call.given[0], np.int32)])), bool)

    return rule


def _arg(kind: str) -> Callable[[_Call], Value]:
    def rule(call: _Call) -> Value:
        place = call.node(kind, call.given[0], axis=call.params["axes"][0], keepdims=0)
        return call.graph.cast(place, call.after[0].dtype)

    return rule


def _product(call: _Call) -> Value:
    (left, right), (left_batch, right_batch) = call.params["dimension_numbers"]
    sizes = [len(shape) for shape in call.shapes]
    if max(sizes) <= 2 and not left_batch and (*left, *right) == (sizes[0] - 1, 0):
        return call.node("MatMul", *call.given)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * size for size in sizes]
    for i, j in (*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)):
        names[0][i] = names[1][j] = next(letters)
    names = [[name or next(letters) for name in one] for one in names]
    batch = [names[0][i] for i in left_batch]
    free = [name for name in names[0] + names[1] if (name in names[0]) != (name in names[1])]
    equation = f"{','.join(map(''.join, names))}->{''.join(batch + free)}"
    return call.node("Einsum", *call.given, equation=equation)


def _top_k(call: _Call) -> list[Value]:
    count = _numbers([call.after[0].shape[-1]])
    largest, places = call.node("TopK", call.given[0], count, outputs=2, axis=-1)
    return [largest, call.graph.cast(places, call.after[1].dtype)]


def _gather(call: _Call) -> Value:
    rows, places = call.given
    numbers, (shape, index) = call.params["dimension_numbers"], call.shapes
    if not isinstance(places, str):  # each number of the result stands at a known place
        flat = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.int32).reshape(shape)
        found = jax.lax.gather(flat, jnp.asarray(places), numbers, call.params["slice_sizes"], mode=call.params["mode"])
        return call.node("Gather", call.node("Reshape", rows, _numbers([-1])), _numbers(found))
    axes, last = tuple(range(index[-1])), tuple(range(len(index) - 1, len(call.after[0].shape)))
    if not (numbers.start_index_map == numbers.collapsed_slice_dims == axes and numbers.offset_dims == last):
        raise ConfigError(f"the agent looks something up in a way that has no rule for ONNX: {numbers}")
    return call.node("GatherND", rows, call.graph.cast(places, np.int64))


def _dynamic_slice(call: _Call) -> Value:
    rows, *starts = call.given
    for axis, (start, size) in enumerate(zip(starts, call.params["slice_sizes"], strict=True)):
        if size < call.shapes[0][axis]:
            places = call.node("Add", call.graph.cast(start, np.int64), _numbers(range(size)))
            rows = call.node("Gather", rows, places, axis=axis)
    return rows


def _scatter(call: _Call) -> Value:
    rows, places, new = call.given
    if isinstance(places, str):
        raise ConfigError("the agent writes to a place that it computes, which has no rule for ONNX")
    number = jnp.arange(np.prod(call.shapes[2], dtype=int), dtype=jnp.int32).reshape(call.shapes[2])
    how = {name: call.params[name] for name in ("dimension_numbers", "mode")}
    found = _numbers(jax.lax.scatter(jnp.full(call.shapes[0], -1, jnp.int32), jnp.asarray(places), number, **how))
    written = call.node("Gather", call.node("Reshape", new, _numbers([-1])), np.maximum(found, 0))
    return call.node("Where", found >= 0, written, rows)


def _condition(call: _Call) -> list[Value]:
    which, *operands = call.given
    no, yes = call.params["branches"]
    if not isinstance(which, str):
        chosen = yes if which else no
        return call.graph.run(chosen.jaxpr, chosen.consts, operands)
    branches = {"then_branch": call.graph.branch(yes, operands), "else_branch": call.graph.branch(no, operands)}
    return _list(call.node("If", call.graph.cast(which, bool), outputs=len(call.after), **branches))


def _list(values: Any) -> list[Value]:
    return values if isinstance(values, list) else [values]


def top_eigenpair(matrix: Array) -> tuple[Array, Array]:
    """Eigenvectors [e, e] and eigenvalues [e] as `eigh` returns them, but NaN except for the last, of A >= 0 [e, e].

    Powers of A become v v' of the top eigenvector v; each squaring doubles the power.
    """
    power = matrix + 1e-30 * jnp.eye(matrix.shape[0])
    for _ in range(SQUARINGS):
        power = power / jnp.trace(power)
        power = power @ power
    largest = jnp.argmax(jnp.diagonal(power))
    vector = jnp.sum(jnp.where(jnp.arange(matrix.shape[0]) == largest, power, 0.0), axis=1)
    vector = vector / jnp.sqrt(jnp.sum(vector**2))
    unknown = jnp.full((matrix.shape[0], matrix.shape[0] - 1), jnp.nan)
    vectors = jnp.concatenate([unknown, vector[:, None]], axis=1)
    return vectors, jnp.concatenate([unknown[0], (vector @ matrix @ vector)[None]])


RULES: dict[str, Callable[[_Call], Any]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    **dict.fromkeys(("copy", "stop_gradient", "optimization_barrier"), lambda call: call.given),
    **{f"reduce_{kind.lower()}": _reduce(kind) for kind in ("Sum", "Max", "Min", "Prod")},
    "reduce_and": _reduce_bool("Min"),
    "reduce_or": _reduce_bool("Max"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "broadcast_in_dim": _broadcast,
    "transpose": lambda call: call.node("Transpose", call.given[0], perm=list(call.params["permutation"])),
    "slice": _slice,
    "concatenate": lambda call: call.node("Concat", *call.given, axis=call.params["dimension"]),
    "split": _split,
    "convert_element_type": lambda call: call.graph.cast(call.given[0], call.params["new_dtype"]),
    "ne": lambda call: call.node("Not", call.node("Equal", *call.given)),
    "square": lambda call: call.node("Mul", call.given[0], call.given[0]),
    "integer_pow": lambda call: call.node("Pow", call.given[0], np.asarray(call.params["y"], call.after[0].dtype)),
    "rsqrt": lambda call: call.node("Reciprocal", call.node("Sqrt", call.given[0])),
    "select_n": _select,
    "clamp": _clamp,
    "dot_general": _product,
    "top_k": _top_k,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "scatter": _scatter,
    "cond": _condition,
    "eigh": lambda call: call.graph.inside(top_eigenpair, call.shapes[0], call.given[0]),
}
"""Nodes for the operations that are not among `SAME`."""
