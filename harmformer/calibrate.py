"""How far the probabilities of a classifier can be trusted, and what it confuses."""

__all__ = ['logits_on', 'fit_temperature', 'validated_temperature', 'reliability', 'calibration_error', 'class_errors',
           'confused_pairs', 'surest_mistakes']

import math
from typing import Any
import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from harmformer.system import evaluating


@torch.no_grad()
def logits_on(model, dl)->tuple: # (n, classes), (n,)
    "What a model says about a DataLoader, in eval mode, and the true classes"
    with evaluating(model): found = [(model(x).float().cpu(), y.cpu()) for x, y in dl]
    z, y = zip(*found)
    return torch.cat(z), torch.cat(y)


def fit_temperature(logits, y)->float:
    "The number that logits are divided by so that their likelihood is largest: above 1 the model was too sure of itself"
    n, k = logits.shape
    doubt = k/(k - 1)/(n + 2) if k > 1 else 0.          # Platt's correction: few right answers are no certainty
    def loss(t): return F.cross_entropy(logits.double()/math.exp(t), y, label_smoothing=doubt).item()
    found:Any = minimize_scalar(loss, bounds=(-3., 3.), method='bounded')
    return math.exp(found.x)


def validated_temperature(model, dls)->float:
    "The temperature that fits the validation images of `dls`, upright and rotated together"
    return fit_temperature(*[torch.cat(o) for o in zip(*[logits_on(model, dl) for dl in (dls.valid, dls.turned)])])


def reliability(p, right, bins:int=10)->list: # [(mean probability, share of right answers, how many)…] of the bins with answers
    "Answers in bins of the probability (n,) that the model gave them, and how many of them are right (n,)"
    p, right = np.asarray(p), np.asarray(right, float)
    which = np.minimum((p*bins).astype(int), bins - 1)
    return [(p[which == b].mean(), right[which == b].mean(), int((which == b).sum())) for b in range(bins) if (which == b).any()]


def calibration_error(logits, y, temperature:float=1., bins:int=10)->float:
    "The expected calibration error: the mean distance of probability and share of right answers, over the bins of `reliability`"
    p, said = (logits/temperature).softmax(1).max(1)
    return sum(n*abs(a - b) for a, b, n in reliability(p, said == y, bins))/len(y)


def class_errors(logits, y, classes:int)->list: # [(wrong, of how many)…]
    "For each class, how many of its pictures are taken for another"
    wrong = logits.argmax(1) != y
    return [(int(wrong[y == c].sum()), int((y == c).sum())) for c in range(classes)]


def confused_pairs(logits, y, most:int=4)->list: # [(true class, said class, indices of the pictures, the surest first)…]
    "The pairs of classes that are confused most often"
    said, p = logits.argmax(1), logits.softmax(1).amax(1)
    wrong = (said != y).nonzero().flatten().tolist()
    found = {}
    for i in sorted(wrong, key=lambda i: -p[i].item()): found.setdefault((int(y[i]), int(said[i])), []).append(i)
    return [(*k, v) for k, v in sorted(found.items(), key=lambda o: -len(o[1]))[:most]]


def surest_mistakes(logits, y, most:int=12)->list: # [(index, true class, said class, probability)…]
    "The wrong answers with the largest probabilities"
    p, said = logits.softmax(1).max(1)
    wrong = (said != y).nonzero().flatten()
    order = wrong[p[wrong].argsort(descending=True, stable=True)][:most]
    return [(int(i), int(y[i]), int(said[i]), float(p[i])) for i in order]
