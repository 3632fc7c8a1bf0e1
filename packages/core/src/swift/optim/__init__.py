"""Learning-rate schedules and optimizers."""
