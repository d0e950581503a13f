"""Scores of whole pictures beside their masks: Dice, IoU and AUC of pixels, a count and F1 of objects, upright and rotated."""

__all__ = ['label_objects', 'matched_objects', 'turned_picture', 'tallies', 'total', 'score_pictures', 'dice_interval']

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any
import numpy as np
import torch
from fastprogress import progress_bar
from scipy import ndimage
from harmformer.fields import rotate_image
from harmformer.masks import with_colours
from harmformer.predict import side_of
from harmformer.segment import segment
from harmformer.system import random_stream


def label_objects(mask)->np.ndarray: # (h, w), 0 on the background
    "Number the connected parts of a mask (h, w)"
    found:Any = ndimage.label(mask)
    return found[0]


def matched_objects(said, true)->int:
    "How many objects of `said` share more than half of their union with one of `true`; both (h, w), numbered"
    both = (said > 0) & (true > 0)
    sizes = [dict(zip(*np.unique(o, return_counts=True))) for o in (said, true)]
    pairs, shared = np.unique(np.stack([said[both], true[both]]), axis=1, return_counts=True)
    return sum(2*int(n) > sizes[0][a] + sizes[1][b] - int(n) for (a, b), n in zip(pairs.T, shared))


def turned_picture(
    image,          # (h, w, c)
    labels,         # (h, w)
    degrees:float,  # counter-clockwise
    most:int=1024,  # of a larger picture, the middle is rotated
)->tuple:           # image (h, w, c) and labels (h, w), rotated, and where they are not mirrored surroundings
    "A picture and its mask, rotated, with mirrored surroundings in the corners"
    if degrees == 0: return image, labels, np.ones(labels.shape, bool)
    top, left = [max(0, (n - most)//2) for n in labels.shape]
    image, labels = [np.asarray(o[top:top+most, left:left+most]) for o in (image, labels)]
    if degrees % 90 == 0:
        image, labels = [np.rot90(o, int(degrees//90)).copy() for o in (image, labels)]
        return image, labels, np.ones(labels.shape, bool)
    (h, w), far = labels.shape, math.hypot(*labels.shape)
    p = [math.ceil((far - n)/2) for n in (h, w)]
    image = _turn(image, degrees, p, 'bilinear', 'reflect').round().astype(np.uint8)
    inside = _turn(np.ones((h, w, 1)), degrees, p, 'nearest', 'constant')[..., 0] > .5
    return image, _turn(labels[..., None], degrees, p, 'nearest', 'reflect')[..., 0].astype(labels.dtype)*inside, inside


def _turn(a, degrees, p, mode, around):
    "An array (h, w, c), padded by `p`, rotated and cut to its size"
    wide = np.pad(a, [(p[0], p[0]), (p[1], p[1]), (0, 0)], mode=around).astype(np.float32)
    h, w = a.shape[:2]
    wide = rotate_image(torch.from_numpy(wide).permute(2, 0, 1), degrees, mode)
    return wide[:, p[0]:p[0]+h, p[1]:p[1]+w].permute(1, 2, 0).numpy()


@dataclass
class _Tally:
    "Counts of pixels and objects, from which all scores follow; tallies of several pictures are added"
    hits: Any; said: Any; true: Any                     # pixels of each class
    levels: Any                                         # (classes, 2, 65536): pixels by their probability, outside and inside of the mask
    objects: Any                                        # matched, found, true

    def __add__(self, other): return _Tally(*[getattr(self, k) + getattr(other, k) for k in ('hits', 'said', 'true', 'levels', 'objects')])

    def scores(self)->dict:
        no, yes = self.levels.transpose(1, 0, 2).astype(float)
        below = no.cumsum(1) - no/2                     # pixels outside with less, and half of those with as much
        with np.errstate(divide='ignore', invalid='ignore'):
            dice, iou = 2*self.hits/(self.said + self.true), self.hits/(self.said + self.true - self.hits)
            auc = (yes*below).sum(1)/(yes.sum(1)*no.sum(1))
        matched, found, true = self.objects
        return dict(dice=_mean(dice), iou=_mean(iou), auc=_mean(auc), f1=2*matched/max(1, found + true), found=int(found), true=int(true),
                    **({f'dice_{c}': float(d) for c, d in enumerate(dice, 1)} if len(dice) > 1 else {}))


def _mean(o): return float(np.nanmean(o)) if np.isfinite(o).any() else math.nan


def _tally(prob, labels, inside, numbered):
    "What a map (out, h, w) is worth, beside the true `labels`, among the pixels `inside`"
    several = len(prob) > 1
    chosen = prob.argmax(0) if several else (prob[0] > .5).astype(int)
    marks = [(prob[c if several else 0], (chosen == c) & inside, (labels == c if several else labels > 0) & inside)
             for c in range(1, max(2, len(prob)))]
    def levels(p, where): return np.bincount((p[where]*65535).round().astype(int), minlength=65536)
    objects = np.zeros(3, int)
    for _, said, true in marks:
        a, b = label_objects(said), labels*inside if numbered else label_objects(true)
        objects += matched_objects(a, b), a.max(), len(np.unique(b[b > 0]))
    return _Tally(np.array([(s & t).sum() for _, s, t in marks]), np.array([s.sum() for _, s, _ in marks]),
                  np.array([t.sum() for _, _, t in marks]),
                  np.stack([[levels(p, inside & ~t), levels(p, t)] for p, _, t in marks]), objects)


def tallies(model, pictures, degrees:float=0., overlap:float=.25, progress:bool=False)->list:
    "What the maps of whole pictures are worth, one by one; arguments as for `score_pictures`"
    size, c = side_of(model), model.config['in_channels']
    shown:Any = progress_bar(pictures, leave=False) if progress else pictures
    def one(o):
        image, labels, inside = turned_picture(np.asarray(o['image']), np.asarray(o['labels']), degrees)
        return _tally(segment(model, with_colours(image, c), size, overlap).cpu().numpy(), labels, inside, o['numbered'])
    return [one(o) for o in shown]


def score_pictures(
    model,              # of create_model
    pictures,           # a part of a MaskFolder
    degrees:float=0.,   # rotate them first
    overlap:float=.25,  # of the tiles
    progress:bool=False,
)->dict:                # dice, iou, auc; f1 of objects, how many were found and how many there are; dice_1… of several classes
    "Segment whole pictures and compare with their masks: pixels of all pictures together, objects at an overlap of half their union"
    return total(tallies(model, pictures, degrees, overlap, progress))


def total(found)->dict:
    "The scores of several tallies together"
    return reduce(add, found).scores()


def dice_interval(found, draws:int=1000)->tuple: # (low, high)
    "A 95 % interval of the Dice of several tallies: what it would be on other pictures of this kind, by drawing these anew"
    rng = random_stream('interval')
    hits, both = np.stack([o.hits for o in found]), np.stack([o.said + o.true for o in found])
    drawn = [rng.randint(0, len(found), len(found)) for _ in range(draws)]
    dice = [_mean(2*hits[i].sum(0)/np.maximum(1, both[i].sum(0))) for i in drawn]
    return tuple(float(o) for o in np.quantile(dice, (.025, .975)))
