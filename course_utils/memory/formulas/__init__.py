"""A dry run as formulas: of any number of blocks, of all sizes, in letters; some are shipped."""
