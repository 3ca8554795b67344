# ruff: noqa: D101 (most of these say what they are by their names and fields)
"""Shapes of requests and answers, for validation and for OpenAPI. Answers are written straight from the views."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

Id = int | float | str
MOST_ITEMS = 1000  # in a basket and in an answer
MOST_LETTERS = 500  # of an id or a search
MOST_QUERIED = 50  # ids in a list of a GET: an address has no room for more
MOST_USERS, MOST_OF_EACH = 1000, 100  # users in a batch, and items for each of them

GivenId = (
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
    | Annotated[StrictFloat, Field(allow_inf_nan=False)]
    | Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]
)


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Count(Shape):
    item: GivenId
    count: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0


Listed = Annotated[list[GivenId], Field(max_length=MOST_ITEMS)]


class Wanted(Shape):
    """What may be recommended, and with what."""

    level: Annotated[float | None, Field(gt=0, lt=1, description="Probability of the interval of each item")] = None
    include_seen: Annotated[StrictBool, Field(description="Whether to include what a user already has")] = False
    allow: Annotated[Listed | None, Field(description="The only items that may be recommended")] = None
    deny: Annotated[Listed | None, Field(description="Items not to recommend")] = None


class Basket(Wanted):
    """Items of a user who need not be in the training data. Counts of an item that occurs twice are added."""

    items: Annotated[list[Count], Field(max_length=MOST_ITEMS)]
    n: Annotated[int, Field(ge=1, le=MOST_ITEMS)] = 10
    order: Annotated[
        Literal["score", "lift"],
        Field(description="lift: those of largest score, by their share of the scores relative to that of the counts"),
    ] = "score"


class Batch(Wanted):
    """Users of the model, each of whom is recommended n items."""

    users: Annotated[list[GivenId], Field(max_length=MOST_USERS)]
    n: Annotated[int, Field(ge=1, le=MOST_OF_EACH)] = 10


class Question(Shape):
    """A basket, and the item whose score is to be explained."""

    items: Annotated[list[Count], Field(max_length=MOST_ITEMS)]
    item: GivenId
    n: Annotated[int, Field(ge=1, le=MOST_ITEMS)] = 10


class Error(Shape):
    error: str


class Answer(Shape):
    model: Annotated[str, Field(description="The model that answered: the first digits of its file's checksum")]


class Named(Shape):
    item: Id
    name: str


class Recommended(Named):
    """A recommended item with its expected count and, if a level was given, an interval and P(y ≥ 1)."""

    score: float | None
    interval: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    at_least_one: float | None = None
    lift: float | None = None


class RecommendAnswer(Answer):
    no_intervals: Annotated[str | None, Field(description="Why there are none although a level was given")] = None


class Recommendations(RecommendAnswer):
    user: Id | None
    items: list[Recommended]
    basket: Annotated[list[Named] | None, Field(description="The items of the request, if it has any")] = None


class FactorShare(Shape):
    """A factor: its number in the model, its rank by size from 0, and its share in a user or an item.

    What items have for everybody has no rank.
    """

    factor: int
    rank: int | None
    name: str
    share: float | None


class UserRecommendations(Shape):
    user: Id
    items: list[Recommended]


class BatchRecommendations(RecommendAnswer):
    """Recommendations for each user of a batch, in the order of the request."""

    users: list[UserRecommendations]


class UserItem(Named):
    """An item of a user: its count and, where the model has them, the expected count and the exposure."""

    count: float | None
    expected: float | None = None
    exposure: float | None = None
    sd: Annotated[float | None, Field(description="Standard deviation of the exposure")] = None


class History(Answer):
    user: Id
    n_items: int
    items: list[UserItem]
    factors: Annotated[list[FactorShare], Field(description="Largest shares of the user's expected counts")] = []


class Part(Named):
    count: float | None
    contribution: float | None


class Others(Shape):
    n_items: int
    contribution: float | None


class FactorPart(Shape):
    """A factor: its number in the model, its rank by size from 0, and its part of a score."""

    factor: int
    rank: int | None
    name: str
    contribution: float | None


class OtherFactors(Shape):
    n_factors: int
    contribution: float | None


class Reasons(Answer):
    """Where a score comes from: it is the sum of the parts, the others and the prior, and that of all factors."""

    user: Id | None
    item: Id
    name: str
    score: float | None
    prior: float | None
    factors: list[FactorPart]
    other_factors: OtherFactors
    parts: list[Part]
    others: Others


class ItemRow(Named):
    """An item: with its similarity, or with its number of users if it was searched for by name."""

    similarity: float | None = None
    n_users: int | None = None


class Items(Answer):
    item: Annotated[Id | None, Field(description="The item that these are similar to")] = None
    items: list[ItemRow]


class UserRow(Shape):
    """A user: with the similarity, or with the number of items if the user was searched for by id."""

    user: Id
    similarity: float | None = None
    n_items: int | None = None


class Users(Answer):
    user: Id | None = None
    users: list[UserRow]


class Whole(Answer):
    """A large answer, of which only this is described here."""

    model_config = ConfigDict(extra="allow")
