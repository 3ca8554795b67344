"""Evaluating models: `evaluate` one, `compare` several; `log_likelihood` and `calibration` of probabilistic ones."""

from nbmf.evaluation.compare import Comparison, compare
from nbmf.evaluation.evaluate import Evaluation, Factorized, ScoresItems, evaluate
from nbmf.evaluation.metrics import ndcg
from nbmf.evaluation.predictive import Calibration, calibration, log_likelihood
from nbmf.evaluation.resampling import Metric

__all__ = [
    "Calibration",
    "Comparison",
    "Evaluation",
    "Factorized",
    "Metric",
    "ScoresItems",
    "calibration",
    "compare",
    "evaluate",
    "log_likelihood",
    "ndcg",
]
