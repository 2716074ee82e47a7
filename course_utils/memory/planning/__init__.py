"""From a question to an answer: what may change, what fits, how it is read from files and written to them.

| class | what it holds |
|---|---|
| `Change` | fields that may be set in a recipe, and what they disturb |
| `Effect` | what a change does to bytes, seconds and traffic, by dry runs |
| `Row` | one change or several, with the verdict and all that differs |
| `Plan` | the answer: the verdict, its rows, the largest sizes that fit |
| `Reading` (in `reading`) | what files and launch lines say, as fields of a recipe, each with its origin |
"""
