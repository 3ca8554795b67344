"""Evaluating models: `evaluate` one, `compare` several, `choose` one; `log_likelihood` and `calibration` of counts."""

from nbmf.estimators.metrics import ndcg
from nbmf.evaluation.choose import Choice, choose
from nbmf.evaluation.compare import Comparison, compare
from nbmf.evaluation.evaluate import Evaluation, Factorized, ScoresItems, evaluate
from nbmf.evaluation.predictive import Calibration, calibration, log_likelihood
from nbmf.evaluation.resampling import Metric

__all__ = [
    "Calibration",
    "Choice",
    "Comparison",
    "Evaluation",
    "Factorized",
    "Metric",
    "ScoresItems",
    "calibration",
    "choose",
    "compare",
    "evaluate",
    "log_likelihood",
    "ndcg",
]
