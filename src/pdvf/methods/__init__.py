"""Every method of the comparison behind one protocol (section 4.3): PD-VF is one of them."""

from pdvf.methods.adaptive import PD_VF_PLUS
from pdvf.methods.base import Agent, AtOnce, Feedback, Hidden, Inputs, Method, Training, Transitions, agent_artefact
from pdvf.methods.maml import MAML
from pdvf.methods.multitask_ppo import KMEANS, ORACLE, PPO_ALL, PPO_DYN
from pdvf.methods.pdvf import BEST_SINGLE, NN, NO_AGG_POLICY, NO_AGG_VALUE, PD_VF, PPO_ENV
from pdvf.methods.play import play_agent, play_everywhere
from pdvf.methods.rl2 import RL2
from pdvf.methods.rma import RMA

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        PD_VF,
        PPO_ENV,
        RL2,
        MAML,
        PPO_DYN,
        PPO_ALL,
        NN,
        KMEANS,
        NO_AGG_POLICY,
        NO_AGG_VALUE,
        ORACLE,
        RMA,
        BEST_SINGLE,
        PD_VF_PLUS,
    )
}
"""The paper's methods in the order of its figures, then ours."""

__all__ = [
    "METHODS",
    "Agent",
    "AtOnce",
    "Feedback",
    "Hidden",
    "Inputs",
    "Method",
    "Training",
    "Transitions",
    "agent_artefact",
    "play_agent",
    "play_everywhere",
]
