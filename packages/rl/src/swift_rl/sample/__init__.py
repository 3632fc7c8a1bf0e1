"""`swift sample`: many answers per prompt, scored, of which the best become rows to train on."""
