"""A set of three questions and our solution of the first, and how a test runs the cells of a notebook that checks them."""

from IPython.utils.capture import capture_output

from course_utils.grading.question import UNTOUCHED

CODE = """
from course_utils.grading import Case, function

question = function(
    lambda x: 2 * x,
    id="q1", title="Doubling <fast>", points=4, difficulty=1, minutes=5, answer="double",
    hints=("a nudge", "an outline", "x + x"),
    public=lambda _: [Case("one", {"x": 1.0}), Case("two", {"x": [2]})],
)
"""
BUG = CODE.replace("q1", "q2").replace("double", "twice").replace("Doubling <fast>", "A bug hunt")
VALUE = """
from course_utils.grading import account

question = account(
    {"size": (8, "bytes")}, id="q3", title="Bytes", points=1, difficulty=1, minutes=1, answer="size", hints=("a", "b", "c")
)
"""
TRIPLING = {"kind": "values", "ending": "", "mutated": [], "values": {"result": 3.0}}
SOLUTION = """# EXERCISE q1
def double(x):
    ### BEGIN SOLUTION
    return x + x  # no `product`
    ### END SOLUTION
    ### BEGIN STUB
    # return ...
    ### END STUB
"""
STUB = f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})"


def tripling():
    """A known mistake as a set holds it, made anew for each test."""
    return {"tripling": {"sentence": "this is <tripling>", "hint": 1, "prints": {"one": TRIPLING}}}


def entry(name, code, answer, stub, **options):
    plain = {"id": name, "title": f"Question {name}", "points": 4, "code": code, "answer": answer, "stub": stub}
    return {**plain, "has_hidden": False, "mistakes": {}, **options}


def run(shell, source):
    """Run a cell; what it displays, each as text and as HTML."""
    with capture_output() as captured:
        execution = shell.run_cell(source, store_history=True)
    execution.raise_error()
    return [(output.data["text/plain"], output.data.get("text/html", "")) for output in captured.outputs]


def text_of(shell, question_id="q1"):
    [(text, _)] = run(shell, f'check("{question_id}")')
    return text


def attempt(shell, source):
    with capture_output():
        shell.run_cell(source, store_history=True)
