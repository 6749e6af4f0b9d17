"""PD-VF-plus (ours): learn what differs between environments, complete the family, act under a belief.

model       codes of the training environments, and a model of the dynamics that is linear in them
belief      the posterior over the code of the environment an episode is in, step by step
completion  environments that nobody simulates, made from those that can be
tasks       episodes in real and made environments, seen together with the belief
"""
