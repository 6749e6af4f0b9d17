from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pdvf.experiment.errors import RunError
from pdvf.experiment.pytrees import from_arrays, to_arrays


class Everything(NamedTuple):
    model: eqx.Module
    optimiser: optax.OptState
    key: jax.Array
    keys: jax.Array
    flags: jax.Array
    count: jax.Array
    half: jax.Array
    empty: jax.Array
    nothing: None


def everything(seed: int = 0) -> Everything:
    key, model_key, data_key = jax.random.split(jax.random.key(seed), 3)
    model = eqx.nn.Linear(3, 2, key=model_key)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return Everything(
        model=model,
        optimiser=optimiser.init(eqx.filter(model, eqx.is_array)),
        key=key,
        keys=jax.random.split(data_key, (2, 2)),
        flags=jnp.array([True, False, True]),
        count=jnp.asarray(2**31 - 1, jnp.int32),
        half=jnp.asarray([1 / 3, -0.0], jnp.bfloat16),
        empty=jnp.zeros((0, 4)),
        nothing=None,
    )


def assert_same_bits(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_names_are_paths():
    names = set(to_arrays(everything()))
    assert {"model.weight", "model.bias", "optimiser.1.0.mu.weight", "optimiser.1.0.count", "key"} <= names
    assert set(to_arrays(jnp.ones(2))) == {"value"}


def test_round_trip_with_arrays_of_other_values():
    tree = everything(0)
    assert_same_bits(tree, from_arrays(everything(1), to_arrays(tree)))


def test_round_trip_with_shapes_only():
    model = everything().model
    assert_same_bits(model, from_arrays(jax.eval_shape(lambda: model), to_arrays(model)))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_keep_their_implementation(impl):
    key = jax.random.key(3, impl=impl)
    back = from_arrays(jax.random.key(0, impl=impl), to_arrays(key))
    assert jax.random.key_impl(back) == impl
    assert jax.random.bits(back) == jax.random.bits(key)


def test_transposed_arrays_keep_their_order():
    array = to_arrays({"a": np.arange(6).reshape(2, 3).T})["a"]
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, "array 'b' is missing"),
        ({"c": np.zeros(1)}, "array 'c' is unknown"),
        ({"b": np.zeros(3, np.float32)}, r"array 'b' is float32\[3\], expected float32\[2\]"),
        ({"b": np.zeros(2, np.float64)}, r"array 'b' is float64\[2\], expected float32\[2\]"),
        ({"a": np.zeros(2, np.uint32)}, r"array 'a' is uint32\[2\], expected uint32\[3, 2\]"),
    ],
)
def test_first_mismatch_is_named(change, message):
    like = {"a": jax.random.split(jax.random.key(0), 3), "b": jnp.zeros(2)}
    arrays = {name: array for name, array in (to_arrays(like) | change).items() if array is not None}
    with pytest.raises(RunError, match=message):
        from_arrays(like, arrays)


def test_programming_mistakes_are_refused():
    with pytest.raises(TypeError, match=r"leaf 'a\.b' is a float"):
        to_arrays({"a": {"b": 1.5}})
    with pytest.raises(ValueError, match=r"two leaves are called 'a\.b'"):
        to_arrays({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)})
