"""`swift sample`: many completions per prompt, scored, of which the best become rows to train on."""
