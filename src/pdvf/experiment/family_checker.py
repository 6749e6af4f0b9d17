"""Looks at a family before hours are spent on it: `pdvf check-family TARGET`.

Contexts that silently do nothing are the commonest mistake with hidden dynamics; everything here is cheap to find out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import Config
from pdvf.core.arrays import Array
from pdvf.engines import Engine, make_engine
from pdvf.engines.rollout import Feedback, Transitions, begin, play
from pdvf.experiment.errors import in_one_line
from pdvf.experiment.progress import duration
from pdvf.families.base import Family

STEPS = 50
"""Steps, at most, that environments are compared over."""
LOOKED = (16, 64)
"""Steps, beside N_d, after which it is asked whether the context shows."""
TRIES = 8
"""Episodes in each training environment from which the context is regressed."""
SHOWS = 0.9
"""R^2 at which a hidden number counts as known."""
NOTHING = 0.1
"""R^2 up to which it does not show at all."""
PENALTIES = (1e-3, 1e-1, 1e1)
"""Of the ridge regression, for each row; the best one is told."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    good: bool
    words: str


def check_family(
    family: Family, seed: int = 0, engine: str = "auto", presets: Mapping[str, Config] | None = None
) -> list[Finding]:
    """Everything that was found, the first that is bad being the first to mend; and how long presets would take."""
    found: list[Finding] = []
    try:
        found.extend(_findings(family, seed, engine, presets or {}))
    except Exception as error:
        words = in_one_line(error) or f"{type(error).__name__}: {str(error).splitlines()[0]}"
        found.append(Finding("environments", False, str(words)))
    return found


def _findings(family: Family, seed: int, name: str, presets: Mapping[str, Config]) -> Iterator[Finding]:
    train, test = family.train(seed), family.test(seed)
    sizes = f"{len(train.numbers)} for training, {len(test.numbers)} for testing"
    contexts = np.concatenate([train.contexts, test.contexts])
    shared = [row for row in test.contexts.tolist() if row in train.contexts.tolist()]
    wrong = f"; in both: {shared}" if shared else ", expected two for training" if len(train.numbers) < 2 else ""
    yield Finding("contexts", not wrong, sizes + wrong)
    bounds = np.concatenate([family.action.low, family.action.high])
    fits = bool(np.isfinite(bounds).all() and (family.action.low < family.action.high).all())
    shape = f"observation of {family.observation.size} numbers, action of {family.action.size}"
    yield Finding("spaces", fits, shape if fits else f"{shape}, whose bounds are not finite")

    engine = make_engine(family, name, seed)
    steps = min(STEPS, family.horizon)
    one, two = (_play(engine, contexts, steps, jax.random.key(seed)) for _ in range(2))
    finite = bool(np.isfinite(one.reward).all() and np.isfinite(one.next_observation).all())
    yield Finding("numbers", finite, "finite" if finite else "observations or rewards that are not finite")
    same = all(map(np.array_equal, one, two))
    tries = "give the same episode" if same else "differ in two tries"
    yield Finding("seeding", same, f"the same seed and actions {tries}")
    yield from _contexts(family, one, contexts, train.numbers + test.numbers)
    yield _hidden(engine, contexts, seed)
    yield _ends(engine, contexts, seed)
    yield from _identified(engine, train.contexts, seed)
    rate = _speed(engine, contexts, steps, seed)
    yield Finding("speed", True, f"{rate:,.0f} steps/s of the environments alone")
    for preset, config in presets.items():
        count = simulated_steps(config, len(train.numbers), len(test.numbers))
        words = f"about {duration(count / rate)} of simulation ({count / 1e6:,.2g} million steps)"
        yield Finding(f"  {preset}", True, f"{words}, learning comes on top")


def _contexts(family: Family, played: Transitions, contexts: np.ndarray, numbers: tuple[int, ...]) -> Iterator[Finding]:
    """Whether every context changes what happens, by how much, in units of how far observations move at all."""
    path = np.where(played.valid[..., None], played.next_observation, np.nan)
    moved = np.nanstd(path, axis=(0, 1)) + 1e-12
    apart = np.sqrt(np.nanmean((path[:, :, None] - path[:, None]) ** 2 / moved**2, axis=(0, 3)))  # [n, n]
    reward = np.nanmean(np.abs(played.reward[:, :, None] - played.reward[:, None]), axis=0)
    pairs = [(i, j) for i in range(len(numbers)) for j in range(i) if not np.array_equal(contexts[i], contexts[j])]
    twins = [(numbers[i], numbers[j]) for i, j in pairs if apart[i, j] < 1e-5 and reward[i, j] < 1e-6]
    nearest = (apart + np.diag(np.full(len(numbers), np.inf))).min(axis=1)
    words = f"every context changes the path, by {nearest.min():.2g} of its spread at least"
    if twins:
        words = f"contexts that do the same: {', '.join(f'{i} and {j}' for j, i in twins[:4])}"
    yield Finding("dynamics", not twins, words)
    for k, name in enumerate(family.context_names):
        others = np.delete(contexts, k, axis=1)
        differ = [apart[i, j] for i, j in pairs if np.array_equal(others[i], others[j])]
        if differ:
            yield Finding(f"  {name}", max(differ) > 1e-5, f"alone it moves the path by up to {max(differ):.2g}")


def _hidden(engine: Engine, contexts: np.ndarray, seed: int) -> Finding:
    """Whether the first observation tells the context: a linear guess must not beat guessing the mean."""
    from sklearn.linear_model import LinearRegression  # slow to import
    from sklearn.metrics import r2_score
    from sklearn.model_selection import KFold, cross_val_predict

    each = 32
    keys = jax.random.split(jax.random.key(seed + 1), each * contexts.shape[0])
    first = np.asarray(jax.jit(engine.reset)(keys, jnp.asarray(np.repeat(contexts, each, axis=0)))[1], np.float64)
    truth = np.repeat(contexts, each, axis=0).astype(np.float64)
    halves = KFold(2, shuffle=True, random_state=seed)
    guess = cross_val_predict(LinearRegression(), first, truth, cv=halves)
    explained = np.asarray(r2_score(truth, guess, multioutput="raw_values"))
    told = [n for n, x in zip(engine.family.context_names, explained, strict=True) if x > 0.5]
    tells = f"tells {', '.join(told)}" if told else "does not tell the context"
    return Finding("hidden", not told, f"the first observation {tells}")


def _ends(engine: Engine, contexts: np.ndarray, seed: int) -> Finding:
    """How long episodes are with random actions; the horizon ends them where nothing else does."""
    horizon = engine.family.horizon
    played = _play(engine, contexts, horizon, jax.random.key(seed + 2))
    length = played.valid.sum(axis=0)
    too_short = int(length.min()) <= engine.family.probe_steps
    words = f"{int(length.min())} to {int(length.max())} steps with random actions, at most {horizon}"
    return Finding("episodes", not too_short, words + (", too short to probe" if too_short else ""))


def _identified(engine: Engine, contexts: np.ndarray, seed: int) -> Iterator[Finding]:
    """After how many random steps a ridge regression tells contexts that it has not seen."""
    family = engine.family
    looked = sorted({family.probe_steps, *(min(k, family.horizon) for k in LOOKED)})
    doubled = {2**i for i in range(looked[-1].bit_length()) if 2**i <= looked[-1]}
    played = _play(engine, np.repeat(contexts, TRIES, axis=0), looked[-1], jax.random.key(seed + 3), same_start=False)
    found: dict[int, dict[str, float]] = {}
    for k in sorted({*looked, *doubled}):
        before = found[max(found)] if found else {}  # who has seen more steps has seen these, too
        found[k] = {name: max(r2, before.get(name, r2)) for name, r2 in _shows(family, contexts, played, k).items()}
    each, last = [], found[looked[-1]]
    if not last:
        return
    for name in last:
        enough = next((k for k, scores in found.items() if scores[name] >= SHOWS), None)
        until = f"{SHOWS} after {enough}" if enough else f"{SHOWS} not reached"
        each.append(f"{name} {'/'.join(f'{max(found[k][name], 0.0):.2f}' for k in looked)} ({until})")
    words = f"R2 of the context from {'/'.join(map(str, looked))} random steps: {'; '.join(each)}"
    yield Finding("identified", True, words)
    if max(last.values()) < NOTHING:
        words = f"no method can adapt to what does not show in the first {looked[-1]} steps"
        yield Finding("", True, f"{words}: best-single will do as well")


def _shows(family: Family, contexts: np.ndarray, played: Transitions, steps: int) -> dict[str, float]:
    """R^2 of each hidden number from the first steps of episodes, in environments that the regression has not seen.

    What is regressed from is how the steps of an episode depart from those of all together, where the dynamics are
    taken as linear: each step, or their mean, or their mean and slopes.
    """
    from pdvf.reports.readouts import left_out_r2, linear  # slow to import

    valid = played.valid[..., None]
    x = np.concatenate([played.observation, played.action], axis=-1)
    y = played.next_observation - played.observation
    x, y = (np.where(valid, (v - v[played.valid].mean(0)) / (v[played.valid].std(0) + 1e-9), 0.0) for v in (x, y))
    x, y = np.concatenate([x, valid], axis=-1)[:steps].astype(np.float64), y[:steps]  # [T, n, p] and [T, n, o]
    few = 1e-2 * np.eye(x.shape[-1])
    usual = np.linalg.solve(np.einsum("tnp,tnq->pq", x, x) + few, np.einsum("tnp,tno->po", x, y))
    left = y - x @ usual
    own = np.linalg.solve(np.einsum("tnp,tnq->npq", x, x) + few, np.einsum("tnp,tno->npo", x, left))
    mean = left.sum(axis=0) / np.maximum(x[..., -1].sum(axis=0), 1)[:, None]
    both = np.concatenate([mean, own.reshape(len(mean), -1)], axis=1)
    rows = (x.reshape(len(contexts), TRIES, -1) for x in (np.moveaxis(left, 0, 1), mean, both))
    found = [
        left_out_r2(family.context_names, contexts, x, [partial(linear, penalty=p)]) for x in rows for p in PENALTIES
    ]
    return max(found, key=lambda scores: sum(scores.values()))


def simulated_steps(config: Config, train: int, test: int) -> int:
    """Environment steps of all phases but for a few of the evaluation, with so many environments for each purpose."""
    horizon, value, seeds = config.environment.horizon, config.value, config.policy_seeds
    kept = config.ppo.checkpoints * train * seeds
    optima = value.stages * train * value.probes * (train + 1)
    episodes = kept * train * config.collect.episodes
    episodes += config.model_seeds * (8 * kept * value.decoder_rounds + optima)
    episodes += config.model_seeds * (2 * kept + value.interpolations + value.uniform) * train
    episodes += ((train + test) * seeds + 4 * config.model_seeds * config.evaluate.episodes) * (train + test)
    return (train + test) * seeds * config.ppo.steps + episodes * horizon


def _speed(engine: Engine, contexts: np.ndarray, steps: int, seed: int) -> float:
    rows = np.tile(contexts, (max(1, 128 // contexts.shape[0]), 1))
    program = _program(engine, rows, steps, same_start=False)
    jax.block_until_ready(program(jax.random.key(seed)))
    began = time.perf_counter()
    jax.block_until_ready(program(jax.random.key(seed + 1)))
    return rows.shape[0] * steps / (time.perf_counter() - began)


def _play(engine: Engine, contexts: np.ndarray, steps: int, key: Array, same_start: bool = True) -> Transitions:
    return jax.tree.map(np.asarray, _program(engine, contexts, steps, same_start)(key))


def _program(engine: Engine, contexts: np.ndarray, steps: int, same_start: bool = True) -> Callable[[Array], Any]:
    """Plays the same random actions in every context, from the same start or each from its own."""
    count, size = contexts.shape[0], engine.family.action.size

    def act(memory: Any, observation: Array, feedback: Feedback, key: Array) -> tuple[Array, Any]:
        return jnp.tile(jax.random.uniform(key, (size,), minval=-1.0), (count, 1)), memory

    @jax.jit
    def program(key: Array) -> Transitions:
        start_key, action_key = jax.random.split(key)
        episodes = begin(engine, jnp.asarray(contexts), start_key)
        if same_start:
            simulator, observation = engine.reset(jnp.tile(start_key, count), jnp.asarray(contexts))
            episodes = episodes._replace(simulator=simulator, observation=observation)
        return play(engine, jnp.asarray(contexts), episodes, act, action_key, steps)[1]

    return program


def table(family: Family, found: list[Finding]) -> str:
    """The findings, for people."""
    lines = [f"{family.name}:"]
    lines += [f"  {'ok ' if f.good else 'BAD'}  {f.what:<14} {f.words}" for f in found]
    bad = sum(not f.good for f in found)
    return "\n".join([*lines, f"{bad} to mend" if bad else "fit for training"])
