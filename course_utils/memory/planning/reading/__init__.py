"""What people have, read as a recipe: files of six tools (`tools.yaml`), scripts, launch lines, names on the Hub.

A model's own `config.json` does not come here: `memory/step/model.py` takes it.
"""
