"""Folders of pictures and masks: what is in them and what is wrong with them, patches to train on, and a loss.
35_own_masks shows it; harmformer.mask_runs trains with it."""

__all__ = ['is_mask_folder', 'read_image', 'read_mask', 'MaskFolder', 'look_at_masks', 'MaskPatches', 'MaskLoss', 'apart']

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
import numpy as np
import torch
import torch.nn.functional as F
from fastprogress import progress_bar
from torch import nn
from harmformer.fields import rotate_image
from harmformer.files import DataError, open_picture, picture_files, to_rgb
from harmformer.patches import Patches
from harmformer.survey import PARTS
from harmformer.system import memory_for_pictures, random_stream

LOSSY = '.jpg', '.jpeg', '.jpe', '.jfif', '.webp'


def is_mask_folder(folder)->bool:
    "Whether `folder`, or its part to train on, holds pictures in `images` and masks in `masks`"
    return any((d/'images').is_dir() and (d/'masks').is_dir() for d in (Path(folder), Path(folder)/'train'))


# --- one picture, one mask ---

def read_image(path)->np.ndarray: # (h, w, 3), or (h, w, 1) if it has no colour, in uint8
    "The pixels of a picture as people see it; of 16 bits scaled to its brightest value"
    x = np.array(to_rgb(open_picture(path, colour=False), path))
    return x[..., :1] if (x == x[..., :1]).all() else x


def read_mask(path)->np.ndarray: # (h, w), whole numbers
    "The values of a mask as they are stored"
    if Path(path).suffix.lower() in LOSSY:
        raise DataError(f'{path} is stored with losses, which change the values of a mask: save it as PNG or TIFF.')
    im = open_picture(path, colour=False)
    x = np.array(im)
    if x.ndim == 3:
        x = x[..., :3] if x.shape[-1] in (3, 4) else x[..., :1]
        if (x != x[..., :1]).any():
            raise DataError(f'{path} marks with colours: save a mask as a picture with one number per pixel, 0 for the background.')
        x = x[..., 0]
    if x.dtype == bool: return x.astype(np.uint8)
    if not (np.isfinite(x).all() and (x == np.floor(x)).all() and x.min() >= 0):
        raise DataError(f'{path} has values that are no whole numbers from 0 on: save it as a mask of 8 or 16 bits.')
    return x.astype(np.uint8 if x.max() < 256 else np.uint16 if x.max() < 65536 else np.int32)


def _target(path, classes):
    "The mask at `path` as classes, or as numbered objects where there are no classes to tell apart; and whether they are numbered"
    y = read_mask(path)
    values = np.unique(y)
    if len(classes) > 2:
        if values.max() < len(classes): return y, False
        raise DataError(f'{path} holds the value {values.max()}, but --classes names {len(classes)}: 0 is {classes[0]}, '
                        f'{len(classes)-1} is {classes[-1]}. Name all of them, or correct the mask.')
    if len(values) < 3: return (y > 0).astype(np.uint8), False
    if values.max() == 255 and (y == 255).sum() > .5*(y > 0).sum():
        raise DataError(f'{path} has {len(values)} values, most of them at smoothed edges: save it with 0 and 255 only.')
    return y, True


# --- the folder ---

@dataclass
class MaskFolder:
    "Pictures with their masks, split into parts; they are in memory, or, when they are too many, in a temporary file each"
    folder: Path
    names: list                                         # of the classes, the background first
    channels: int                                       # of the pictures
    parts: dict                                         # {'train': [dict(name, image (h, w, c), labels (h, w))…], 'valid', 'test'}
    numbered: bool = False                              # masks number their objects
    notes: list = field(default_factory=list)           # sentences about what was seen
    keep: Any = None                                    # the temporary folder

    @property
    def out(self): return 1 if len(self.names) == 2 else len(self.names)

    def __str__(self): return ' '.join(self.notes)


def _pairs(folder):
    "[(picture, mask)…] of one folder: every picture needs a mask with its name"
    found = {}
    for kind in ('images', 'masks'):
        if not (folder/kind).is_dir(): raise DataError(f'{folder} has no folder {kind}: put the {kind} there.')
        found[kind] = {}
        for p in picture_files(folder/kind):
            if p.stem in found[kind]: raise DataError(f'{p} and {found[kind][p.stem].name} have the same name: remove one of them.')
            found[kind][p.stem] = p
    images, masks = found['images'], found['masks']
    if not images: raise DataError(f'{folder/"images"} holds no pictures: put them there.')
    for stem, p in images.items():
        if stem not in masks:
            raise DataError(f'{p} has no mask: put {stem}.png into {folder/"masks"}, or take the picture out.')
    return [(p, masks[stem]) for stem, p in images.items()], len(masks) - len(images)


def _split(pairs, folder):
    "A fifth of the pictures to validate and a fifth to test, the same ones on every machine"
    n = len(pairs)
    if n < 3:
        raise DataError(f'{folder/"images"} holds {n} picture{"s"*(n > 1)}: at least three are needed, to train, to validate and to test.')
    order, k = random_stream('masks', 'split').permutation(n), max(1, round(n/5))
    return dict(zip(PARTS, ([pairs[i] for i in sorted(o)] for o in (order[2*k:], order[:k], order[k:2*k]))))


def _read_pair(image, mask, classes):
    "A picture with its mask, both checked"
    x, (y, numbered) = read_image(image), _target(mask, classes)
    if x.shape[:2] != y.shape:
        raise DataError(f'{mask} has {y.shape[1]}×{y.shape[0]} pixels, but its picture {image.name} has {x.shape[1]}×{x.shape[0]}: '
                        'give both the same size.')
    return dict(name=image.stem, image=x, labels=y, numbered=numbered)


def look_at_masks(
    folder,            # with images/ and masks/, or with train/, valid/ and test/ that hold these
    classes=(),        # their names in the order of the masks' values, the background first; none: background and one more
    memory:float=None, # bytes of pictures that are kept in memory; the others go to temporary files
    progress:bool=True,
)->MaskFolder:
    "Read all pictures and masks once, and report every fault, with its file and its cure, before any long computation"
    folder, left = Path(folder), memory_for_pictures() if memory is None else float(memory)
    if len(classes) == 1: raise DataError('--classes names one class: name the background too, as the first of them.')
    ready = (folder/'train').is_dir() and not (folder/'images').is_dir()
    if ready:
        found = {p: _pairs(folder/p) for p in PARTS if (folder/p).is_dir()}
        if missing := [p for p in PARTS if p not in found]:
            raise DataError(f'{folder} has a folder train but no {" and no ".join(missing)}: make them, or put all into images and masks.')
        pairs, extra = {p: o for p, (o, _) in found.items()}, sum(e for _, e in found.values())
    else:
        every, extra = _pairs(folder)
        pairs = _split(every, folder)
    keep, parts = tempfile.TemporaryDirectory(prefix='harmformer-'), {p: [] for p in PARTS}
    todo = [(p, *o) for p in PARTS for o in pairs[p]]
    shown:Any = progress_bar(todo, leave=False) if progress else todo
    for i, (part, image, mask) in enumerate(shown):
        o:Any = _read_pair(image, mask, classes)
        left -= o['image'].nbytes + o['labels'].nbytes
        if left < 0:
            for k in ('image', 'labels'):
                np.save(file := Path(keep.name)/f'{i}-{k}.npy', o[k])
                o[k] = np.load(file, mmap_mode='r')
        parts[part].append(o)
    return _checked(MaskFolder(folder, list(classes) or ['background', 'foreground'], 1, parts, keep=keep), extra, left < 0)


def _checked(seen, extra, stored):
    "What can only be told of all of them: that something is marked, in which colours, and how much"
    every = [o for p in PARTS for o in seen.parts[p]]
    for part in PARTS:
        if not any(o['labels'].any() for o in seen.parts[part]):
            where = f'all masks in {seen.folder}' if not any(o['labels'].any() for o in every) else f'all masks of the part to {part}'
            raise DataError(f'{where} are empty, {seen.parts[part][0]["name"]} among them: mark the foreground with values above 0.')
    seen.channels = max(o['image'].shape[-1] for o in every)
    seen.numbered = any(o['numbered'] for o in every)
    sizes = sorted({o['image'].shape[1::-1] for o in every})
    size = ' to '.join(f'{w}×{h}' for w, h in ([sizes[0]] if len(sizes) == 1 else [sizes[0], sizes[-1]]))
    share = sum(int((o['labels'] > 0).sum()) for o in every)/sum(o['labels'].size for o in every)
    kind = f'with {len(seen.names)} classes' if len(seen.names) > 2 else 'that number their objects' if seen.numbered else 'of two values'
    parts = ', '.join(f'{len(seen.parts[p])} to {p.replace("valid", "validate")}' for p in PARTS)
    seen.notes = [f'{len(every)} pictures of {size} pixels, {"in colour" if seen.channels == 3 else "without colour"}: {parts}.',
                  f'Masks {kind}; {share:.1%} of the pixels are marked.']
    if seen.numbered: seen.notes.append('If their values are classes, name these with --classes.')
    if extra > 0:
        seen.notes.append(f'{extra} mask{"s have" if extra > 1 else " has"} no picture and {"are" if extra > 1 else "is"} not used.')
    if stored: seen.notes.append('They do not fit into memory and are read from temporary files.')
    return seen


# --- patches: half of them around a marked pixel, the others anywhere ---

def with_colours(x, c:int)->torch.Tensor: # (c, h, w)
    "A picture (h, w, 1 or c) with `c` colours"
    return torch.from_numpy(np.repeat(x, c, -1) if x.shape[-1] < c else np.array(x)).permute(2, 0, 1)


def _window(a, top, left, size):
    "A square of an array (h, w, …), mirrored where it reaches over the edge"
    rows, cols = [np.abs((np.arange(s, s + size) + n - 1) % max(1, 2*n - 2) - n + 1) for s, n in zip((top, left), a.shape)]
    r0, c0 = rows.min(), cols.min()
    part = np.asarray(a[r0:rows.max()+1, c0:cols.max()+1])
    return part[(rows - r0)[:, None], cols - c0]


def apart(labels)->np.ndarray: # (h, w), True on objects
    "The objects of numbered `labels` without the pixels where two of them touch, so that they stay apart"
    y = labels > 0
    for a, b in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1])):
        touch = (labels[a] != labels[b]) & (labels[a] > 0) & (labels[b] > 0)
        y[a] &= ~touch
        y[b] &= ~touch
    return y


class MaskPatches(Patches):
    "`n` random patches of pictures, with their masks as targets; which they are is a function of `key`"
    def __init__(self,
        pictures,             # a part of a MaskFolder
        n:int,                # patches
        size:int=64,          # of a patch
        names=('background', 'foreground'), channels:int=3, # of the MaskFolder
        augment:bool=False,   # flips and brightness at random
        turn:bool=False,      # each by its own angle
        key=None,             # words that fix the patches; None: the key of each batch does
        marked:float=.5,      # share of the patches with a marked pixel in the middle half
    ):
        super().__init__('masks', list(names), n, size, augment, key, turn)
        self.pictures, self.channels, self.marked = pictures, channels, marked
        self.places = [[] for _ in names[1:]]                   # of each class: (picture, up to 1,000 of its pixels)
        for i, o in enumerate(pictures):
            for c, places in enumerate(self.places, 1):
                at = np.flatnonzero(o['labels'] == c if len(names) > 2 else o['labels'])
                if len(at): places.append((i, at[random_stream('places', i, c).randint(0, len(at), 1000)]))
        self.places = [p for p in self.places if p]

    def drawn(self, rng):
        "Ten numbers from U[0, 1) per patch"
        return rng.random_sample((self.n, 10))

    def corner(self, u):
        "Picture, row and column of the window that the random numbers `u` choose"
        if u[0] < self.marked and self.places:
            places = self.places[int(u[1]*len(self.places))]
            i, pixels = places[int(u[2]*len(places))]
            row, col = divmod(int(pixels[int(u[3]*1000)]), self.pictures[i]['labels'].shape[1])
            row, col = [int(v - w*self.size/2) for v, w in zip((row, col), u[4:6])]  # the pixel is in the middle half
            spread = self.size//4
        else:
            i, spread = int(u[2]*len(self.pictures)), 0
            row, col = [int(w*max(1, n - self.size + 1)) for n, w in zip(self.pictures[i]['labels'].shape, u[4:6])]
        shape = self.pictures[i]['labels'].shape
        row, col = [min(max(v - spread, 0), max(n - self.size, 0)) for v, n in zip((row, col), shape)]
        return i, row - self.margin, col - self.margin

    def cut(self, u):
        "Image (channels, window, window) in [0, 1] and labels (window, window)"
        i, row, col = self.corner(u)
        o = self.pictures[i]
        x, y = [_window(o[k], row, col, self.window) for k in ('image', 'labels')]
        y = apart(y) if o['numbered'] else y if len(self.vocab) > 2 else y > 0
        return with_colours(x, self.channels)/255, torch.from_numpy(y.astype(np.float32))

    def batch(self, idxs, key=(0, 0)):
        "Patches (b, channels, size, size) in [0, 1]; masks (b, 1, size, size) of 0 and 1, or classes (b, size, size)"
        us, m = self.draw(key)[list(idxs)], self.margin
        x, y = [torch.stack(o) for o in zip(*[self.cut(u) for u in us])]
        u = torch.from_numpy(us).float()
        if self.turn: x, y = rotate_image(x, 360*u[:, 6]), rotate_image(y[:, None], 360*u[:, 6], 'nearest')[:, 0]
        x, y = [o[..., m:m+self.size, m:m+self.size] for o in (x, y)]
        if self.augment:
            for k, dim in ((7, -1), (8, -2)): x, y = [torch.where((u[:, k] < .5).view(-1, *[1]*(o.ndim-1)), o.flip(dim), o) for o in (x, y)]
            x = x**(2*u[:, 9] - 1).exp2().view(-1, 1, 1, 1).sqrt()          # a gamma from 0.7 to 1.4
        return x, y[:, None] if len(self.vocab) == 2 else y.long()

    def new_empty(self): return MaskPatches([], 0, self.size, self.vocab, self.channels)


class MaskLoss(nn.Module):
    "Cross entropy + 1 − Dice, which is taken over the batch, for each map but the background's"
    def forward(self, logits, y): # (b, out, h, w); (b, 1, h, w) of 0 and 1, or classes (b, h, w)
        if logits.shape[1] == 1: p, t, entropy = logits.sigmoid(), y, F.binary_cross_entropy_with_logits(logits, y)
        else:
            p, entropy = logits.softmax(1)[:, 1:], F.cross_entropy(logits, y)
            t = F.one_hot(y, logits.shape[1]).movedim(-1, 1)[:, 1:]
        both, each = [o.sum((0, 2, 3)) for o in (p*t, p + t)]
        return entropy + 1 - ((2*both + 1)/(each + 1)).mean()
    def activation(self, logits): return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
    def decodes(self, logits): return (logits > 0).float() if logits.shape[1] == 1 else logits.argmax(1)
