"""The model: a likelihood of the counts and gamma priors on the two factors.

    y_ui ~ Poisson(a_ui μ_ui),  a_ui ~ p(a),  μ = W Hᵀ,  w_uk ~ Gamma(α^W, β^W),  h_ik ~ Gamma(α^H, β^H)

Point factors ignore the priors: that is the maximum-likelihood form of the paper's §3. Gamma factors are the Bayesian
form of §4.
"""

from dataclasses import dataclass

from nbmf.model import comparison as comparison  # so that files know its members
from nbmf.model import family as family
from nbmf.model.factors import Prior
from nbmf.model.likelihood import Likelihood


@dataclass(frozen=True)
class Model:
    """The likelihood of the counts and the priors of the two factors."""

    likelihood: Likelihood
    user_prior: Prior
    item_prior: Prior
