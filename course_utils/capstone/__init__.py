"""The capstone: scenarios in which a recipe is weighed against budgets, and a task to train within limits."""
