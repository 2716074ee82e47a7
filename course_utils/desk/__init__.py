"""A learner's desk: bets and ledger, where they are, their own copy of the course, JupyterLab, what the machine has.

`course lab` brings the `workspace` up to date, writes the page of `start` and serves all of it (`lab`, `widget_states`); a
chapter's set-up cell runs `opening`; `report` makes a page of all that `bets` and `ledger` hold.
"""
