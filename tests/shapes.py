"""Code by hand under its own annotations: beartype asks of each call what jaxtyping's shapes promise."""

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

ROOMS = ("distributed", "optim", "precision", "techniques")
check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is welcome where a float is


def install() -> None:
    """Whatever of the rooms by hand is imported from now on is checked."""
    install_import_hook([f"course_utils.{room}" for room in ROOMS], "shapes.check")
