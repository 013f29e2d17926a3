"""Settings: their values from text, their checks, and what subclasses keep of them."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from taufree.experiments.settings import BatchSettings, Bounds, Settings, list_settings


@dataclass(frozen=True)
class Base(Settings):
    share: Annotated[float, "A share.", Bounds(0, 1)] = 0.5
    view: Annotated[Literal["crop", "mask"], "Which view."] = "crop"
    most: Annotated[int | None, "A limit."] = None
    flip: bool = False
    name: str = "x"
    size: Literal[32, 64] = 32
    pair: tuple[int, int] = (1, 2)
    noise: float = 0.1


@dataclass(frozen=True)
class Derived(Base):
    epochs: int = 7
    share: float = 0.25


SETTINGS = {setting.name: setting for setting in list_settings(Derived)}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "3", 3),
        ("share", "1e-1", 0.1),
        ("view", "mask", "mask"),
        ("most", "None", None),
        ("most", "4", 4),
        ("flip", "True", True),
        ("flip", "false", False),
        ("name", "a=b", "a=b"),
        ("size", "64", 64),
    ],
)
def test_text_becomes_what_the_field_holds(name, text, value):
    found = SETTINGS[name].parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "needed"),
    [
        ("epochs", "many", "an integer of at least 1"),
        ("epochs", "1.5", "an integer of at least 1"),
        ("epochs", "0", "an integer of at least 1"),
        ("share", "2", "a number between 0 and 1"),
        ("share", "nan", "a number between 0 and 1"),
        ("noise", "inf", "a finite number of at least 0"),
        ("noise", "nan", "a finite number of at least 0"),
        ("view", "flip", "one of crop, mask"),
        ("most", "-1", "an integer of at least 0, or none"),
        ("flip", "maybe", "true or false"),
        ("size", "48", "one of 32, 64"),
        ("pair", "3", r"a tuple\[int, int\], which --set cannot give"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_needed(name, text, needed):
    with pytest.raises(ValueError, match=f"^{name} must be {needed}, got .*{text}.*\\.$"):
        SETTINGS[name].parse(text)


def test_a_subclass_changes_a_default_and_keeps_the_sentence_and_the_bounds():
    assert (SETTINGS["share"].default, SETTINGS["share"].sentence) == (0.25, "A share.")
    assert (SETTINGS["epochs"].default, SETTINGS["epochs"].sentence) == (7, "Passes over the data.")
    with pytest.raises(ValueError, match=r"share must be a number between 0 and 1, got 1\.5\."):
        Derived(share=1.5)
    with pytest.raises(ValueError, match="epochs must be an integer of at least 1, got 0"):
        Derived(epochs=0)


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("batch_size", 1)])
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least .*, got {value}"):
        BatchSettings(**{name: value})
