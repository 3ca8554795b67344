"""Negative binomial matrix factorization: factorize over-dispersed counts and recommend from them."""

from nbmf import datasets
from nbmf.interactions import Interactions
# from nbmf.reading import read_interactions
from nbmf.recommender import NBMF, PoissonMF

__all__ = ["NBMF", "Interactions", "PoissonMF", "datasets"]
