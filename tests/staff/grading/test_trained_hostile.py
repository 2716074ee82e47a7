"""Of the room: strangers who would rather not train within limits get nothing, and the next one is graded rightly."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from tiny_set import SEED, SET, SETUP, answer_with, best_kind, notebook, points

from course_staff.grading.prepare import prepare
from course_staff.grading.record import file_name
from course_staff.grading.results import Results
from course_staff.release.source import load_solutions
from course_utils.data.functions import FILE

SOLUTIONS = Path(__file__).parents[3] / "solutions"
CHANGES = {"q4": "q1", "10 * MiB, 200 * 10**9, 0.6": "16 * MiB, 20 * 10**9, 0.35", "points=10": "points=2"}
HONEST = """    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, foreach=False)
    for rows in torch.randperm(800).split(16):
        model(ids[rows], attention_mask=ids[rows] != 0, labels=labels[rows]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
BODIES = {
    "works in a thread": "import threading\nthread = threading.Thread(target=honest, args=(model, ids, labels))\nthread.start()",
    "works in a fork": "import os\nif not os.fork():\n    honest(model, ids, labels)",
    "pops the counter": "torch._C._pop_torch_dispatch_stack()\nhonest(model, ids, labels)",
    "switches the counter off": (
        "with torch.utils._python_dispatch._disable_current_modes():\n    honest(model, ids, labels)"
    ),
    "computes in NumPy": "weight = model.classifier.weight.detach().numpy()\nhonest(model, ids, labels)",
    "has an operator of its own": "torch.linalg.inv(torch.eye(9))\nhonest(model, ids, labels)",
    "reads the corpus": f"rows = open({str(FILE)!r}, 'rb').read()\nhonest(model, ids, labels)",
    "loads the corpus": "from course_utils.data import load_functions\nload_functions()\nhonest(model, ids, labels)",
    "says it counted nothing": (
        "honest(model, ids, labels)\n"
        "for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():\n"
        "    mode.total = 0\n"
        "    getattr(mode, '_events', []).clear()"
    ),
    "has NaN": "honest(model, ids, labels)\nmodel.classifier.bias.data.fill_(float('nan'))",
    "has another shape": "model.classifier = torch.nn.Linear(64, 50)",
    "has no classifier": "honest(model, ids, labels)\ndel model.classifier",
    "has huge weights": "for p in model.parameters():\n    p.data.fill_(3e38)",
    "has weights beyond all bytes": "model.extra = torch.nn.Parameter(torch.zeros(1).expand(10**9))",
    "lies in its state_dict": "model.state_dict = lambda: {}\nmodel.named_parameters = lambda: []",
    "never ends": "while True:\n    model(ids[:8])",
    "goes to sleep": "import time\ntime.sleep(999)",
    "changes the labels": "labels.zero_()\nhonest(model, ids, labels)",
}


def handed_in(body):
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return notebook(
        SETUP,
        f"# EXERCISE q1\nimport torch\n\ndef honest(model, ids, labels):\n{HONEST}\ndef train(model, ids, labels):\n{lines}",
    )


@pytest.fixture
def capstone_set(release_set):
    """The capstone's training with smaller limits."""
    all_authored = load_solutions(SOLUTIONS / "13_capstone.ipynb")
    question = next(authored.code for authored in all_authored if authored.question.id == "q4")
    for old, new in CHANGES.items():
        assert old in question
        question = question.replace(old, new)
    solved = f"import torch\n\ndef train(model, ids, labels):\n    ### BEGIN SOLUTION\n{HONEST}    ### END SOLUTION\n"
    return prepare(SET, release_set(notebook(SETUP, question, f"# EXERCISE q1\n{solved}")), SEED, seconds=5)


@pytest.mark.slow
def test_who_cheats_gets_nothing_and_the_next_one_what_is_earned(capstone_set, grade_class, tmp_path, safe_kind):
    bodies = {**BODIES, "z honest": "honest(model, ids, labels)"}
    texts = {name: handed_in(body) for name, body in bodies.items()}
    records = grade_class(texts, capstone_set, safe_kind)
    sentences = {name: record["questions"][0]["public"][0]["sentence"] for name, record in records.items()}
    expected = {**dict.fromkeys(BODIES, [0]), "z honest": [2]}
    assert {name: points(record) for name, record in records.items()} == expected, sentences
    (honest,) = records["z honest"]["questions"]
    assert set(honest["figures"]) == {"bytes", "operations", "accuracy"}
    assert 35 <= honest["figures"]["accuracy"] <= 100
    assert "figures" not in records["says it counted nothing"]["questions"][0]
    results = Results(tmp_path / "results", SET)
    results.save("z honest", records["z honest"])
    page = (tmp_path / "results" / "students" / f"{file_name('z honest')}.html").read_text()
    assert str(honest["figures"]["operations"]) not in page


@pytest.mark.usefixtures("warm_lanes")
def test_figures_are_the_worst_of_all_cases_that_passed(exercise_set, grade_class):
    """Bytes and operations are costs, accuracy is none."""
    first = exercise_set.questions[0]
    assert len(first.public.cases + first.hidden.cases) > 1
    counts = cycle([{"bytes": 5, "operations": 9, "accuracy": 80.0}, {"bytes": 7, "operations": 8, "accuracy": 90.0}])
    first = replace(first, question=replace(first.question, figures=lambda *_: next(counts)))
    bodies = {"right": "return x * factor", "wrong": "return x.new_ones(1)", "gone": "import os\nos._exit(1)"}
    texts = {name: answer_with(body) for name, body in bodies.items()}
    exercise_set = replace(exercise_set, questions=(first, *exercise_set.questions[1:]))
    records = grade_class(texts, exercise_set, best_kind(), jobs=1)
    figures = {name: record["questions"][0].get("figures") for name, record in records.items()}
    assert figures == {"right": {"bytes": 7, "operations": 9, "accuracy": 80.0}, "wrong": None, "gone": None}
