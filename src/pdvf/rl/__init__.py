"""Reinforcement learning: PPO for an ensemble of policies, and rollouts of anything that acts."""
