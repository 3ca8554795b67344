"""What a model can answer, and what of its data it does not fit."""

from typing import Any

from nbmf.estimators.check import PROFILE, can_check


def abilities(model: Any) -> dict[str, bool]:
    """Return which questions a model can answer."""
    has_factors = hasattr(model, "user_factors_") and hasattr(model, "item_factors_")
    models_counts = has_intervals(model)
    methods = ("explain", "explain_for", "recommend_for", "similar_items", "similar_users")
    return {
        **{name: hasattr(model, name) for name in methods},
        **{name: models_counts and hasattr(model, name) for name in ("predictive", "predictive_for")},
        "exposures": hasattr(model, "exposures") and hasattr(model, "exposure_"),  # of a Poisson model they are all 1
        "factors": has_factors,
        "map": has_factors,
        "fit": len(getattr(model, "objective_", ())) > 0,
        "check": can_check(model),
    }


TARGETS = {"log1p": "ln(1 + count)", "binary": "whether there is a count"}


def has_intervals(model: Any) -> bool:
    """Return whether the model has a distribution of counts; some have one under some of their settings only."""
    try:
        model.predictive(model.users_[:1], model.items_[:1]).interval()
    except (AttributeError, ValueError):
        return False
    return True


def why_no_intervals(model: Any) -> str:
    """Return a sentence about a model that has no intervals."""
    name, target = type(model).__name__, model.result_.target
    if not getattr(getattr(model, "likelihood_", None), "is_normalized", True):
        return f"{name} {PROFILE}"
    return f"{name} has no distribution of counts" + (
        f", as its scores are of {TARGETS.get(target, target)}" if target != "counts" else ""
    )


def criticism(model: Any) -> dict[str, Any]:
    """Return the findings of a check of the model, and what its picture shows, panel by panel.

    An axis is of shares or of numbers, and is logarithmic or goes from 0 to 1.
    """
    found = model.check()
    panels = [
        {"title": each.title, "is_share": each.is_share, "is_logarithmic": each.is_logarithmic, "marks": each.marks}
        for each in found.panels
    ]
    sizes = {"n_cells": found.n_cells, "n_draws": found.n_draws}
    return {"fits": found.fits, "findings": list(found.findings), **sizes, "panels": panels}
