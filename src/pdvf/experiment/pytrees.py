"""Pytrees as named arrays and back, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.experiment.errors import RunError

Tree = TypeVar("Tree")


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree by name, such as `actor.layers.0.weight`; typed random keys become their data."""
    return {name: np.asarray(_data(leaf), order="C") for name, leaf in _named_leaves(tree).items()}


def from_arrays(like: Tree, arrays: Mapping[str, np.ndarray]) -> Tree:
    """The tree with the structure of `like`, whose leaves are arrays or `jax.ShapeDtypeStruct`; random keys are arrays.

    Leaves become JAX arrays on the default device.
    """
    named = _named_leaves(like)
    what = f"expected the {len(named)} arrays of {type(like).__name__}"
    for name in named:
        if name not in arrays:
            raise RunError(f"array {name!r} is missing, {what}")
    for name in arrays:
        if name not in named:
            raise RunError(f"array {name!r} is unknown, {what}")
    leaves = [_restore(name, leaf, arrays[name]) for name, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


LARGEST = 1e30
"""Sums and squares of numbers up to this are finite, in single precision sums of a hundred million."""
KINDS = {"number": "float32", "any number": "float32", "whole number": "int32", "flag": "bool"}


def require_axes(
    where: str,
    arrays: Mapping[str, np.ndarray],
    axes: Mapping[str, tuple[str, str]],
    needed: Sequence[str] = (),
    **sizes: int,
) -> None:
    """Raises unless arrays are as `axes` says, such as {"returns": ("number", "SEJ")}; those in `needed` must be there.

    A letter stands for an axis and has one size throughout, which `sizes` may give. A number is finite.
    """
    for name in needed:
        if name not in arrays:
            raise RunError(f"{where} has no array {name!r}")
    for name, (kind, letters) in axes.items():
        if name not in arrays:
            continue
        array = arrays[name]
        expected = [sizes.get(letter, letter) for letter in letters]
        fits = array.ndim == len(letters) and str(array.dtype) == KINDS[kind]
        for letter, size in zip(letters, array.shape, strict=False):
            fits = fits and sizes.setdefault(letter, size) == size
        if not fits:
            shown = ", ".join(map(str, expected))
            raise RunError(
                f"{where}: array {name!r} is {array.dtype}{list(array.shape)}, expected {KINDS[kind]}[{shown}]"
            )
        if kind == "number" and not np.all(np.abs(array) <= LARGEST):
            raise RunError(f"{where}: array {name!r} holds numbers that are not finite or above {LARGEST:g}")


def _restore(name: str, leaf: Any, array: np.ndarray) -> jax.Array:
    stored = _data(leaf)
    if (array.dtype, array.shape) != (stored.dtype, stored.shape):
        expected = f"{stored.dtype}{list(stored.shape)}"
        raise RunError(f"array {name!r} is {array.dtype}{list(array.shape)}, expected {expected}")
    if is_key(leaf):
        implementations: list[Any] = []
        jax.eval_shape(lambda key: implementations.append(jax.random.key_impl(key)), leaf)
        return jax.random.wrap_key_data(jnp.asarray(array), impl=implementations[0])
    return jnp.asarray(array)


def _named_leaves(tree: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        if name in named:
            raise ValueError(f"two leaves are called {name!r}: give the parts of the tree names without dots")
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
            raise TypeError(f"leaf {name!r} is a {type(leaf).__name__}, expected an array")
        named[name] = leaf
    return named


def _data(leaf: Any) -> Any:
    if not is_key(leaf):
        return leaf
    read = jax.random.key_data
    return jax.eval_shape(read, leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else read(leaf)


def is_key(leaf: Any) -> bool:
    """Whether an array holds typed random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
