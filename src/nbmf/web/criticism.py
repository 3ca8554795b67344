"""What a model can answer, and what of its data it does not fit."""

from typing import Any

from nbmf.estimators.check import can_check


def abilities(model: Any) -> dict[str, bool]:
    """Return which questions a model can answer."""
    has_factors = hasattr(model, "user_factors_") and hasattr(model, "item_factors_")
    # item–item models of other targets have no concentration, and logarithms no distribution of counts
    models_counts = hasattr(model, "concentration_") and getattr(model.result_, "target", "counts") != "log1p"
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
