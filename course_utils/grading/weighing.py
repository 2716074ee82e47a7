"""Recipes as answers: weighed in a scenario, in which every budget that they keep to earns its share."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from course_utils.capstone.layout import Layout
from course_utils.capstone.scenarios import Scenario, Weighed, weigh
from course_utils.errors import CourseError
from course_utils.grading.kinds import design
from course_utils.grading.question import Question
from course_utils.memory.step.recipe import Recipe
from course_utils.units import format_bytes, format_seconds

_NOT_JUDGED = "is not looked at yet: {}"


def weighed(scenario: Scenario, **options) -> Question:
    """A `Recipe` for the scenario, or its fields as a dict; with several cards, a pair of it and a `Layout`.

    Each budget earns its share, and so does each rule on better recipes. A choice that is not the required update earns nothing,
    and one that does not fit earns nothing more.
    """
    question = design(rules(scenario), **options)
    return replace(question, run=lambda answer, inputs: question.run(plain_choice(answer), inputs))


def plain_choice(answer: object) -> object:
    """The fields of recipe and layout as dicts; anything else as it is."""
    if type(answer) in (tuple, list):
        return [plain_choice(part) for part in answer]
    return dict(vars(answer)) if type(answer) in (Recipe, Layout) else answer


def rules(scenario: Scenario) -> Mapping[str, Callable[[object], str | None]]:
    """The rules by the names of a check's lines; each returns None, or what is wrong, to follow the choice's name."""

    def weigh_choice(choice: object) -> Weighed | str:
        try:
            return weigh(scenario, *choice_from(choice, scenario.cards > 1))
        except CourseError as error:
            return str(error).rstrip(".")
        except Exception as error:  # a recipe cannot foresee all plain values
            return f"it is no recipe ({type(error).__name__}); give the fields that a Recipe has"

    def require_update(choice: object) -> str | None:
        result = weigh_choice(choice)
        return f"cannot be weighed: {result}" if isinstance(result, str) else None

    def require(find_fault: Callable[[Weighed], str | None], fits: bool = True) -> Callable[[object], str | None]:
        def rule(choice: object) -> str | None:
            result = weigh_choice(choice)
            if isinstance(result, str):
                return _NOT_JUDGED.format("the first line comes first")
            return _NOT_JUDGED.format("it has to fit first") if fits and not result.fits else find_fault(result)

        return rule

    budgets = {
        "the update that is asked for": require_update,
        f"fits into {format_bytes(scenario.memory)}": require(Weighed.on_bytes, fits=False),
        f"at most {format_seconds(scenario.seconds)}": require(lambda result: result.on_seconds(scenario.seconds)),
    }
    if scenario.between is not None:
        budgets[f"at most {format_bytes(scenario.between)} leave a machine"] = require(Weighed.on_bytes_between)
    return budgets | {
        f"better: at most level {scenario.level} of the ladder": require(Weighed.on_level),
        f"better: at most {format_seconds(scenario.quick)}": require(lambda result: result.on_seconds(scenario.quick)),
    }


def choice_from(choice: object, is_pair: bool) -> tuple[Recipe, Layout]:
    """Recipe and layout from plain values. Raises `CourseError` for what is neither, and for a recipe that contradicts itself."""
    if is_pair and not (type(choice) is list and len(choice) == 2):
        raise CourseError("Give a pair, a Recipe and a Layout, or dicts of their fields.")
    recipe, layout = choice if is_pair else (choice, {})
    return _make(Recipe, recipe), _make(Layout, layout)


def _make(kind: type, choice: object) -> Recipe | Layout:
    names = [field.name for field in fields(kind)]
    if type(choice) is not dict:
        raise CourseError(f"Give a {kind.__name__}, or a dict of its fields: {', '.join(names)}.")
    for name in choice.keys() - set(names):
        raise CourseError(f"A {kind.__name__} has no field {name!r}; it has {', '.join(names)}.")
    return kind(**{name: tuple(value) if type(value) is list else value for name, value in choice.items()})
