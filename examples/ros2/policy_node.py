"""A ROS 2 node that acts with an exported model: observations in, actions out, a service that begins an episode.

python policy_node.py --ros-args -p model:=model.pdvf
"""

import pdvf
import rclpy
from rclpy.node import Node
from std_msgs.msg import Float32, Float32MultiArray
from std_srvs.srv import Empty


class Policy(Node):
    """Answers every message on `observation` with one on `action`."""

    def __init__(self):
        super().__init__("policy")
        file = self.declare_parameter("model", "model.pdvf").value
        self.adapter = pdvf.Adapter.load(file, hold_last_action=True)
        self.begun = False
        self.actions = self.create_publisher(Float32MultiArray, "action", 1)
        self.novelty = self.create_publisher(Float32, "out_of_distribution", 1)
        self.create_service(Empty, "~/reset", self.reset)
        self.create_subscription(Float32MultiArray, "observation", self.act, 1)
        seconds = self.adapter.about["control_step"]
        every = "" if seconds is None else f", one every {seconds:g} s"
        self.get_logger().info(f"{file} expects observations of {self.adapter.observation_size} numbers{every}")

    def reset(self, request, response):
        """The next observation is the first of an episode: what was inferred is forgotten."""
        self.begun = False
        return response

    def act(self, message):
        """One step of control."""
        if not self.begun:
            self.adapter.reset(message.data)
            self.begun = True
        self.actions.publish(Float32MultiArray(data=self.adapter.act(message.data).tolist()))
        self.novelty.publish(Float32(data=float(self.adapter.out_of_distribution)))


def main():
    """Runs it until it is stopped."""
    rclpy.init()
    rclpy.spin(Policy())


if __name__ == "__main__":
    main()
