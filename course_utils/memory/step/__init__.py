"""What is trained and how: a `Recipe`, the model behind a name, and both as a `Workload` that runs."""
