"""The shapes of questions and answers, as OpenAPI tells them; answers are written straight from the views."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt

Id = int | float | str
MOST_ITEMS = 1000  # in a basket and in an answer
MOST_LETTERS = 500  # of an id or a search

GivenId = (
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
    | Annotated[StrictFloat, Field(allow_inf_nan=False)]
    | Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]
)
Level = Annotated[float, Field(gt=0, lt=1, description="Probability of the interval that comes with each item")]


class Shape(BaseModel):
    """What all have in common."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Taken(Shape):
    """An item that somebody took, and how often."""

    item: GivenId
    count: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0


class Basket(Shape):
    """What somebody took who need not be a user of the model; an item that comes twice counts twice."""

    items: Annotated[list[Taken], Field(max_length=MOST_ITEMS)]
    n: Annotated[int, Field(ge=1, le=MOST_ITEMS)] = 10
    level: Level | None = None


class Question(Shape):
    """A basket, and the item whose score is to be explained."""

    items: Annotated[list[Taken], Field(max_length=MOST_ITEMS)]
    item: GivenId
    n: Annotated[int, Field(ge=1, le=MOST_ITEMS)] = 10


class Fault(Shape):
    """Why there is no answer."""

    error: str


class Answer(Shape):
    """What every answer says."""

    model: Annotated[str, Field(description="Which model answered: the beginning of its file's checksum")]


class Named(Shape):
    """An item by its id and name."""

    item: Id
    name: str


class Recommended(Named):
    """A recommended item: its expected count and, where a level was given, an interval and P(y ≥ 1)."""

    score: float | None
    interval: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    at_least_one: float | None = None


class Recommendations(Answer):
    """Items, best first."""

    user: Id | None
    items: list[Recommended]


class Had(Named):
    """An item that a user took: its count and, where the model knows, the expected count and the exposure."""

    count: float | None
    expected: float | None = None
    exposure: float | None = None
    sd: float | None = None


class Took(Answer):
    """What a user took, most often first."""

    user: Id
    n_items: int
    items: list[Had]


class Part(Named):
    """An item that the user took, and what it brings to the score."""

    count: float | None
    contribution: float | None


class Others(Shape):
    """The items that are not listed, together."""

    n_items: int
    contribution: float | None


class Reasons(Answer):
    """Where a score comes from: the parts, the others and the prior add up to it."""

    user: Id | None
    item: Id
    name: str
    score: float | None
    prior: float | None
    parts: list[Part]
    others: Others


class AlikeItem(Named):
    """An item like another."""

    similarity: float | None


class AlikeItems(Answer):
    """Items like another, most alike first."""

    item: Id
    items: list[AlikeItem]


class AlikeUser(Shape):
    """A user like another."""

    user: Id
    similarity: float | None


class AlikeUsers(Answer):
    """Users like another, most alike first."""

    user: Id
    users: list[AlikeUser]


class FoundItem(Named):
    """An item that was searched for."""

    n_users: int


class FoundItems(Answer):
    """Items that were searched for, best first."""

    items: list[FoundItem]


class FoundUser(Shape):
    """A user who was searched for."""

    user: Id
    n_items: int


class FoundUsers(Answer):
    """Users who were searched for, best first."""

    users: list[FoundUser]


class Whole(Answer):
    """A large answer that is only outlined here."""

    model_config = ConfigDict(extra="allow")


class Health(Shape):
    """How the server is."""

    status: str
