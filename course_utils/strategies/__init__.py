"""How a model is trained by several processes, one engine a file."""
