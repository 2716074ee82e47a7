"""From a question to an answer: what may change, what fits, how it is read from files and written to them."""
