"""The policy-dynamics value function (section 3.4)."""
