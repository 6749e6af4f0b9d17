"""Options of the phases and of the methods, checked when they are made; the defaults are the paper's.

Those that are `Fixed` are not on the command line: they come from a preset, or from a file (`--config`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tyro.conf import Fixed

from pdvf.core.validation import divides as _divides
from pdvf.core.validation import positive as _positive
from pdvf.core.validation import require as _require


@dataclass(frozen=True)
class PPOOptions:
    """Reinforcement learning phase (section 3.2, appendices A.3, B and C)."""

    steps: int = 3_000_000
    """Environment steps per policy."""
    environments: int = 16
    """Copies of the environment that one policy plays at once."""
    rollout: int = 128
    """Steps of each copy between two updates; environments * rollout is the paper's 2048."""
    epochs: int = 10
    """Passes over the data of one update."""
    minibatches: int = 32
    """Minibatches of one pass."""
    learning_rate: float = 3e-4
    """Adam's step size at the start; it falls linearly to 0."""
    discount: float = 0.99
    """Gamma."""
    gae_lambda: float = 0.95
    """Lambda of the generalised advantage estimator."""
    clip: float = 0.2
    """Clipping of the probability ratio."""
    value_coefficient: Fixed[float] = 0.5
    """Weight of the critic's loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    max_gradient_norm: Fixed[float] = 0.5
    """Gradients are clipped to this norm."""
    hidden: int = 64
    """Width of the two hidden layers of actor and critic."""
    normalise_observations: bool = False
    """Scale observations by the mean and standard deviation of all that a policy has seen, not by their bounds."""
    normalise_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted returns so far."""
    stagger: Fixed[bool] = False
    """Let the first episodes of the copies end at different times, so that not all end at once ever after."""
    checkpoints: int = 8
    """Policies kept along the training of each run; the last is the finished one."""

    def __post_init__(self) -> None:
        _positive(self, "steps", "environments", "rollout", "epochs", "minibatches", "learning_rate", "hidden")
        _positive(self, "checkpoints", "clip", "max_gradient_norm")
        _require(0 < self.discount <= 1, "ppo.discount", self.discount, "above 0 and at most 1")
        _require(0 <= self.gae_lambda <= 1, "ppo.gae_lambda", self.gae_lambda, "between 0 and 1")
        batch = self.environments * self.rollout
        _divides("ppo.minibatches", self.minibatches, "environments * rollout", batch)
        least = f"at least environments * rollout * checkpoints = {batch * self.checkpoints}"
        _require(self.steps >= batch * self.checkpoints, "ppo.steps", self.steps, least)

    @property
    def updates_per_checkpoint(self) -> int:
        """Updates between two kept checkpoints."""
        return self.steps // (self.environments * self.rollout * self.checkpoints)


@dataclass(frozen=True)
class CollectOptions:
    """Trajectories for the self-supervised phase (appendix B)."""

    episodes: int = 24
    """Episodes of each kept checkpoint in each training environment; half train, half are held out.
    Eight checkpoints of 24 or 25 episodes are the paper's 200 a policy."""
    steps: int = 0
    """Steps kept of an episode: the first N_d and others drawn at random. 0 keeps all."""

    def __post_init__(self) -> None:
        _require(self.steps >= 0, "collect.steps", self.steps, "at least 0 (0 keeps every step)")
        even = self.episodes >= 2 and self.episodes % 2 == 0
        _require(even, "collect.episodes", self.episodes, "an even number of at least 2: half train, half are held out")


@dataclass(frozen=True)
class AutoencoderOptions:
    """One autoencoder of the self-supervised phase (section 3.3, appendices A.1 and C)."""

    embedding: int = 8
    """Dimensions of the embedding."""
    model: int = 64
    """Width of the set transformer, d_model."""
    dropout: Fixed[float] = 0.1
    """Dropout of the encoder's sublayers."""
    decoder: Fixed[int] = 128
    """Width of the decoder's two hidden layers."""
    epochs: int = 200
    """Passes over the training trajectories."""
    batch: int = 2048
    """Trajectories in a gradient step."""
    learning_rate: float = 1e-3
    """Adam's largest step size; it falls to 0 along a cosine."""

    def __post_init__(self) -> None:
        _positive(self, "embedding", "model", "decoder", "epochs", "batch", "learning_rate")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        _require(self.embedding >= 2, "embedding", self.embedding, "at least 2 (unit vectors need two)")


@dataclass(frozen=True)
class PolicyAutoencoderOptions(AutoencoderOptions):
    """The policy autoencoder, which reads whole episodes."""

    noise: Fixed[float] = 0.1
    """Standard deviation of noise on each component of the embedding while the decoder learns."""
    set_size: Fixed[int] = 50
    """Most state-action pairs of an episode that the encoder reads (a random subset when there are more)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "set_size")
        _require(self.noise >= 0, "noise", self.noise, "at least 0")


@dataclass(frozen=True)
class ValueOptions:
    """Supervised phase (section 3.4, appendices A.2, B and C)."""

    members: int = 5
    """Quadratic forms that are trained side by side and averaged; their mean is a quadratic form again."""
    hidden: int = 64
    """Width of the two hidden layers of the network for L."""
    epochs: int = 200
    """Passes over the data before aggregation."""
    stages: int = 20
    """Stages of aggregation for the value function."""
    stage_epochs: int = 100
    """Passes over the data in each stage."""
    batch: int = 4096
    """Pairs of policy and environment in a gradient step."""
    learning_rate: float = 5e-3
    """Adam's largest step size."""
    interpolations: Fixed[int] = 4500
    """Extra policy embeddings between those of two training policies, scored before training."""
    uniform: Fixed[int] = 1500
    """Extra policy embeddings drawn uniformly from the sphere, scored before training."""
    probes: Fixed[int] = 16
    """Optimal embeddings played for each training environment in a stage, each from a noisy probe of its own."""
    jitter: Fixed[float] = 0.1
    """Half of them are moved by noise of up to this standard deviation, to learn what lies around them."""
    own_environment: Fixed[float] = 0.75
    """Share of aggregated data that is drawn from the environment an embedding is optimal for."""
    own_range: Fixed[bool] = False
    """Scale returns to [0, 1] within each training environment, instead of over all of them together."""
    power: Fixed[float] = 1.0
    """Returns, scaled to [0, 1], are raised to this power for W: above 1 it tells good policies apart better."""
    high_return: Fixed[float] = 0.9
    """Scaled returns above this are fitted from both sides ..."""
    underestimation: Fixed[float] = 0.05
    """... below it, an underestimate weighs only this much: only an overestimate can mislead the choice."""
    snapshots: Fixed[int] = 5
    """Stages with the lowest held-out loss whose quadratic forms are averaged in the end."""
    anchor: Fixed[float] = 0.0
    """Share of A(s0, z_d) that is taken from A in the training environments near z_d when a policy is chosen."""
    anchor_width: Fixed[float] = 0.3
    """How near: the standard deviation of their weights around z_d."""
    decoder_rounds: Fixed[int] = 5
    """Rounds of aggregation for the policy decoder."""
    decoder_epochs: Fixed[int] = 200
    """Passes over the data in each of those rounds."""

    def __post_init__(self) -> None:
        _positive(self, "members", "hidden", "epochs", "stage_epochs", "batch", "learning_rate", "probes", "snapshots")
        _positive(self, "power", "anchor_width")
        _require(self.batch >= 2, "value.batch", self.batch, "at least 2 (half original data, half aggregated)")
        for name in ("own_environment", "anchor", "high_return", "underestimation"):
            _require(0 <= getattr(self, name) <= 1, f"value.{name}", getattr(self, name), "between 0 and 1")
        for name in ("stages", "interpolations", "uniform", "decoder_rounds", "jitter"):
            _require(getattr(self, name) >= 0, f"value.{name}", getattr(self, name), "at least 0")


@dataclass(frozen=True)
class EvaluateOptions:
    """Evaluation phase (section 3.5, appendix E)."""

    episodes: int = 10
    """Episodes of each environment and seed."""

    def __post_init__(self) -> None:
        _positive(self, "episodes")


@dataclass(frozen=True)
class BaselineOptions:
    """Baselines and ablations (section 4.3, appendices A.3 and C)."""

    environments: int = 0
    """Copies of the environment that one policy of PPOall, PPOdyn, Kmeans, Oracle or PD-VF-plus plays at once; 0 for as
    many as `ppo.environments`. These methods train few policies: a GPU wants more copies of each than in phase 1.
    Where the budget gives a policy k times `ppo.steps`, it plays about k times as many copies."""
    rollout: Fixed[int] = 0
    """Steps of each copy between two updates, also of MAML's; 0 for as many as `ppo.rollout`."""
    epochs: Fixed[int] = 0
    """Passes over the data of one update; 0 for as many as `ppo.epochs`."""
    minibatches: Fixed[int] = 0
    """Minibatches of one pass; 0 for as many as `ppo.minibatches`."""
    hidden: Fixed[int] = 0
    """Width of the two hidden layers of actor and critic; 0 for that of `ppo.hidden`."""
    clusters: int = 5
    """K of Kmeans."""
    meta_batch: Fixed[int] = 20
    """MAML: environments whose episodes are played at once."""
    meta_batches: Fixed[int] = 10
    """MAML: minibatches of one pass over them."""
    meta_step: Fixed[float] = 0.1
    """MAML: size of the gradient step at test time before training; it is learned, one for each unit."""
    recurrent_environments: Fixed[int] = 64
    """RL2: episodes played at once; few and long sequences would leave most of a machine idle."""
    recurrent_rollout: Fixed[int] = 64
    """RL2: steps of each between two updates, through which gradients flow back."""
    recurrent_minibatches: Fixed[int] = 4
    """RL2: minibatches of one pass, each of whole sequences."""
    history: Fixed[int] = 16
    """RMA: most recent transitions from which the context is estimated."""
    estimation_rounds: Fixed[int] = 3
    """RMA: rounds of playing and regression; the first is played with the true context, the others with estimates."""
    estimation_updates: Fixed[int] = 2000
    """RMA: gradient steps of the regression in each round."""

    def __post_init__(self) -> None:
        as_ppo = ("environments", "rollout", "epochs", "minibatches", "hidden")
        _positive(self, *(f.name for f in dataclasses.fields(self) if f.name not in as_ppo))
        for name in as_ppo:
            given = getattr(self, name)
            _require(given >= 0, f"baselines.{name}", given, f"at least 0 (0 for as many as ppo.{name})")
        for name, of in (("meta_batches", "meta_batch"), ("recurrent_minibatches", "recurrent_environments")):
            _divides(f"baselines.{name}", getattr(self, name), of, getattr(self, of))


@dataclass(frozen=True)
class PlusOptions:
    """PD-VF-plus: the model of the dynamics, and how much is synthesised with it (ours)."""

    code: int = 4
    """Most numbers of the code of an environment; as many are used as explain the data."""
    width: Fixed[int] = 128
    """Width of the two hidden layers of the model's networks."""
    rows: int = 131_072
    """Steps of the policy that a stage learns the model from; each is made in two environments."""
    updates: Fixed[int] = 1000
    """Gradient steps of the model in a stage."""
    batch: Fixed[int] = 1024
    """Steps in a gradient step."""
    learning_rate: Fixed[float] = 3e-3
    """Adam's largest step size for the model."""
    synthesised: float = 0.5
    """Share of training episodes in synthesised environments, where the model can be trusted."""

    def __post_init__(self) -> None:
        _positive(self, "code", "width", "rows", "updates", "batch", "learning_rate")
        _require(self.updates >= 20, "plus.updates", self.updates, "at least 20")
        _require(0 <= self.synthesised <= 1, "plus.synthesised", self.synthesised, "between 0 and 1")
