"""A home for every chapter: the experiments and figures that only one chapter needs, in one file that begins with its number."""
