"""The ROS 2 node of examples/ros2, with stand-ins for rclpy and the messages."""

from __future__ import annotations

import runpy
import sys
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import pdvf
from pdvf.deploy.pretrained import find

NODE = Path(__file__).parents[2] / "examples" / "ros2" / "policy_node.py"


class Message:
    def __init__(self, data=None):
        self.data = data


class Node:
    """Keeps what a node asks for."""

    def __init__(self, name):
        self.name, self.sent, self.answers = name, {}, {}

    def declare_parameter(self, name, default):
        return SimpleNamespace(value=str(find("spaceship")) if name == "model" else default)

    def create_publisher(self, kind, topic, depth):
        self.sent[topic] = []
        return SimpleNamespace(publish=self.sent[topic].append)

    def create_subscription(self, kind, topic, answer, depth):
        self.answers[topic] = answer

    def create_service(self, kind, name, answer):
        self.answers[name] = answer

    def get_logger(self):
        return SimpleNamespace(info=lambda text: None)


@pytest.fixture
def node(monkeypatch):
    modules = {
        "rclpy": {},
        "rclpy.node": {"Node": Node},
        "std_msgs": {},
        "std_msgs.msg": {"Float32": Message, "Float32MultiArray": Message},
        "std_srvs": {},
        "std_srvs.srv": {"Empty": object},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(NODE))["Policy"]()


def test_the_node_acts_as_the_adapter_does_and_forgets_at_a_reset(node):
    observations = [array("f", [2.5, 0.2 + 0.1 * t]) for t in range(4)]
    for _ in range(2):
        adapter = pdvf.Adapter.load(find("spaceship"))
        adapter.reset(observations[0])
        for observation in observations:
            node.answers["observation"](Message(observation))
            np.testing.assert_array_equal(np.float32(node.sent["action"][-1].data), adapter.act(observation))
        assert node.sent["out_of_distribution"][-1].data == pytest.approx(adapter.out_of_distribution)
        assert node.answers["~/reset"](None, "done") == "done"
    assert len(node.sent["action"]) == 8
    node.answers["observation"](Message(array("f", [np.nan, 0.2])))  # a sensor that dropped out
    assert np.isfinite(node.sent["action"][-1].data).all()
