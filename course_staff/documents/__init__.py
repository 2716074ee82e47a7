"""The documents beside the chapters: the README with its pictures, the lines of a weekend's read, and the names in the code."""
