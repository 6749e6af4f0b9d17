"""A run folder with made-up but plausible numbers, as `pdvf evaluate` leaves it.

Run as a program it writes one: `python tests/fake_run.py FOLDER`.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pdvf.config import Config, to_dict
from pdvf.experiment.store import RunStore
from pdvf.families.builtin.spaceship import Spaceship, SpaceshipOptions
from pdvf.reports import write_report

LEVEL = {
    "pd-vf": 0.93,
    "ppo-env": 0.91,
    "nn": 0.62,
    "kmeans": 0.71,
    "maml": 0.75,
    "rl2": 0.88,
    "ppo-dyn": 0.35,
    "ppo-all": 0.45,
    "no-agg-policy": 0.3,
    "no-agg-value": 0.1,
    "oracle": 0.87,
    "rma": 0.84,
    "best-single": 0.78,
    "pd-vf-plus": 0.95,
}
COLUMNS = ("family", "split", "environment", "method", "protocol", "seed", "episode", "return")


def make_run(
    folder: Path,
    methods: tuple[str, ...] = ("pd-vf", "ppo-env", "nn"),
    seeds: int = 3,
    episodes: int = 4,
    family: str = "spaceship",
    per_pair: int = 1,
) -> RunStore:
    """A finished run; `family` other than spaceship keeps the numbers and changes the name."""
    rng = np.random.default_rng(0)
    config = to_dict(Config("spaceship", SpaceshipOptions(), policy_seeds=seeds, model_seeds=seeds)) | {
        "family": family
    }
    store = RunStore.create(folder, config, f"pdvf train {family} --out {folder}")
    ship = Spaceship()
    train, test = ship.train(0), ship.test(0)
    numbers = np.array([*train.numbers, *test.numbers])
    contexts = np.concatenate([train.contexts, test.contexts])
    is_test = np.arange(len(numbers)) >= len(train.numbers)

    rows, returns = make_returns(rng, family, numbers, is_test, methods, seeds, episodes)
    write_returns(store, rows)
    save_phases(store, rng, contexts[:, 0], seeds)
    evaluation = make_evaluation(rng, numbers, contexts, len(train.numbers), returns, per_pair)
    store.save("evaluation", evaluation, info={"seconds": 21.4})
    return store


def write_returns(store: RunStore, rows: list[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([COLUMNS, *rows])
    store.write_text("returns.csv", text.getvalue())


def make_returns(rng, family, numbers, is_test, methods, seeds, episodes):
    rows: list[tuple[Any, ...]] = []
    returns = np.zeros((seeds, len(numbers), episodes))
    for method in methods:
        for protocol in ("honest", "peek") if method == "pd-vf" else ("honest",):
            for e, number in enumerate(numbers.tolist()):
                centre = LEVEL[method] - (0.03 if is_test[e] else 0) + (0.02 if protocol == "peek" else 0)
                centre += rng.normal(0, 0.1 * (1 - LEVEL[method]))
                for s in range(seeds):
                    one = centre + rng.normal(0, 0.25 * (1 - LEVEL[method]))
                    values = np.clip(one + rng.normal(0, 0.03, episodes), 0, 0.999)
                    if (method, protocol) == ("pd-vf", "honest"):
                        returns[s, e] = values
                    split = "test" if is_test[e] else "train"
                    rows += [
                        (family, split, number, method, protocol, s, j, value)
                        for j, value in enumerate(values.tolist())
                    ]
    return rows, returns


def save_phases(store: RunStore, rng, angles: np.ndarray, seeds: int) -> None:
    best = 0.9 + 0.06 * np.cos(angles)
    history = []
    for stage in range(8):
        progress = np.linspace(stage, stage + 1, 23)[None] / 8
        curve = best[:, None] * (1 - np.exp(-5 * progress)) + rng.normal(0, 0.02, (len(angles), 23))
        if stage == 0:
            curve[:, :2] = np.nan
        history.append({"curve": curve, "train_return": float(np.nanmean(curve[:15]))})
    tree = {"weight": np.zeros(3, np.float32)}
    store.save("policies", tree, info={"history": history, "seconds": 3723.0})
    store.save("trajectories", tree, info={"history": [{"mean_return": 0.6}], "seconds": 9.3})
    history = []
    for stage in range(20):
        loss = 0.3 * np.exp(-stage / 4) + 0.01 + rng.uniform(0, 0.003, seeds)
        history.append(
            {
                "dynamics_loss": loss / 10,
                "dynamics_held_out_loss": loss / 9,
                "policy_loss": loss,
                "policy_held_out_loss": loss * 1.2,
            }
        )
    store.save("dynamics", tree, info={"history": history, "seconds": 340.0})
    store.save("policy", tree, info={"history": history, "seconds": 340.0})
    history = [{"decoder_loss": 0.1 / (r + 1) + rng.uniform(0, 0.01, seeds)} for r in range(3)]
    history.append({"loss": np.full(seeds, 0.2), "held_out_loss": np.full(seeds, 0.22)})
    for stage in range(20):
        held_out = 0.15 * np.exp(-stage / 8) + 0.02 + rng.uniform(0, 0.01, seeds)
        history.append(
            {
                "loss": held_out * 0.9,
                "held_out_loss": held_out,
                "optimal_return": 0.94 - 0.4 * np.exp(-stage / 4) + rng.normal(0, 0.01, seeds),
                "optimal_error": 0.1 * np.exp(-stage / 4) + rng.uniform(0, 0.004, seeds),
            }
        )
    store.save("adapter", tree, info={"history": history, "seconds": 512.8})


def make_evaluation(rng, numbers, contexts, train_count, returns, per_pair) -> dict[str, np.ndarray]:
    seeds, environments, _ = returns.shape
    steps = 50
    paths = np.zeros((seeds, environments, steps + 1, 2))
    valid = np.zeros((seeds, environments, steps), bool)
    for s in range(seeds):
        for e in range(environments):
            length = int(rng.integers(20, 36))
            t = np.linspace(0, 1, length + 1)[:, None]
            bend = np.sin(np.pi * t) * rng.normal(0.6 * np.cos(contexts[e, 0]), 0.15)
            end = np.array([2.5 + rng.normal(0, 0.05), 5.0])
            path = np.array([2.5, 0.2]) * (1 - t) + end * t + bend * np.array([1.0, 0.0])
            paths[s, e, : length + 1] = path
            valid[s, e, :length] = True

    policy, environment = (np.tile(grid.ravel(), per_pair) for grid in np.meshgrid(numbers, numbers, indexing="ij"))
    turn = contexts[environment - 1, 0]
    z_d = np.stack([np.cos(turn), np.sin(turn)] + [np.zeros_like(turn)] * 6, axis=-1)
    z_pi = rng.normal(size=(len(numbers), 8))[policy - 1]

    def unit(x: np.ndarray) -> np.ndarray:
        x = x + rng.normal(0, 0.05, x.shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    away = np.abs(np.angle(np.exp(1j * (contexts[:, None, 0] - contexts[None, :, 0])))) / np.pi
    transfer = np.clip(0.93 - 0.35 * away[:, None, :] + rng.normal(0, 0.03, (environments, seeds, environments)), 0, 1)
    actual = np.clip(rng.beta(0.7, 0.8, 5000), 0, 1)
    predicted = np.clip(0.08 + 0.85 * actual + rng.normal(0, 0.08, 5000), 0, 1.1)
    arrays = {
        "environments": numbers,
        "train_count": np.array(train_count),
        "contexts": contexts,
        "returns": returns,
        "predicted": returns + rng.normal(0.02, 0.02, returns.shape),
        "path_observation": paths[:, :, :-1],
        "path_next_observation": paths[:, :, 1:],
        "path_valid": valid,
        "transfer": transfer,
        "tsne_z_d": unit(z_d),
        "tsne_z_pi": unit(z_pi),
        "tsne_policy": policy,
        "tsne_environment": environment,
        "value_predicted": predicted,
        "value_actual": actual,
    }
    single = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    return {name: array.astype(single.get(array.dtype, array.dtype)) for name, array in arrays.items()}


if __name__ == "__main__":
    print(write_report(make_run(Path(sys.argv[1]), per_pair=5)))
