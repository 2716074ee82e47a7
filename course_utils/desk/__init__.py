"""A learner's desk: bets and ledger, where they are, their own copy of the course, JupyterLab, what the machine has."""
