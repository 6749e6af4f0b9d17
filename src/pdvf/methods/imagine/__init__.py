"""A learned model of the dynamics in which policies are tried before one of them acts."""
