"""Questions, checks that say what is wrong, and grading that a submission cannot forge.

- Questions: `question` says what one is, `kinds` builds each kind, with `streams` (optimizers), `ranks` (collectives), `subjects`
  (tests of other answers) and `weighing` (recipes). `loading` reads the released sets; `oracles` replays hidden ones.
- Running an answer: `run` gives its outcomes within a `time_limit`, with nothing `foreign`, as plain `values`; `holding` measures
  what it keeps in memory, `shell` runs the cells of a notebook.
- Judging: `judge` makes verdicts, points and a diagnosis from outcomes, by `compare` and by the `fingerprints` of known mistakes.
- What a learner sees: `check` in a notebook, `terminal` elsewhere. `definition` and `failures` find the answer's cell, `showing`
  and `rendering` put the result into words and HTML, `solutions` has ours; `progress` is stored, `board` sums it up.
"""

from course_utils import import_when_used

_HOMES = {
    "board": ("my_progress",),
    "check": ("FailedCheckError", "Checker", "exercise"),
    "compare": ("Rule", "at_most"),
    "kinds": ("account", "choice", "collective", "design", "function", "kills", "stream"),
    "question": ("Case", "Mistake", "Question", "Tolerance", "Variant"),
    "subjects": ("Zoo",),
    "weighing": ("weighed",),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
