"""Maps of pictures of any size: by tiles, their scores, and how they are shown and saved. 14_evaluate explains the scores."""

__all__ = ['tile_starts', 'segment', 'segment_bands', 'segmentation_scores', 'score_images', 'show_maps', 'turning_maps',
           'show_turning_maps', 'middle', 'map_picture', 'save_maps']

import math
from pathlib import Path
from typing import Any
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from fastprogress import progress_bar
from PIL import Image
from scipy import ndimage
from sklearn.metrics import roc_auc_score
from harmformer.fields import disc, rotate_image
from harmformer.files import open_picture, to_rgb
from harmformer.system import check_room, evaluating, reuse_memory, write_whole


# --- a network for patches takes a photograph as overlapping tiles, and a window that fades towards their edges blends the answers.
#     Tiles that start at the top left, with the last one pushed inside, would be others in a rotated photograph: so their places are
#     symmetric and their number is even, and a quarter turn of the photograph is a quarter turn of the map to rounding ---

def tile_starts(n:int, size:int, overlap:float=.5)->list:
    "Where tiles of `size` start that cover `n` pixels and overlap by at least this share, the same from both ends"
    if n <= size: return [0]
    count = 2*math.ceil((1 + (n-size)/(size*(1-overlap)))/2)
    first = [i*(n-size)//(count-1) for i in range(count//2)]
    return first + [n-size-s for s in reversed(first)]


def _at_least(image, size):
    "`image` with mirrored rims, or zeros where it is too narrow for these, so that a tile fits in"
    h, w = image.shape[-2:]
    if min(h, w) >= size: return image
    image = image/255 if image.dtype == torch.uint8 else image
    return F.pad(image[None], (0, max(0, size-w), 0, max(0, size-h)), mode='constant' if min(h, w) <= size//2 else 'reflect')[0]


@torch.no_grad()
def segment_bands(
    model,            # makes logits (b, out, size, size) of images (b, c, size, size)
    image,            # (c, h, w), of any size, in [0, 1] or uint8
    size:int=64,      # of the tiles
    overlap:float=.5, # share of a tile that its neighbour sees too, at least
    bs:int=16,        # tiles at a time
):
    "Yield probabilities (out, rows, w) from top to bottom, with no more than one row of tiles in memory as floats"
    (h, w), p = image.shape[-2:], next(model.parameters())
    total = weight = p.new_zeros(())                    # until the number of maps is known
    image = _at_least(image, size)
    rows, cols = [tile_starts(n, size, overlap) for n in image.shape[-2:]]
    fade = torch.sin(math.pi*(torch.arange(size, device=p.device, dtype=p.dtype) + .5)/size)**2 + 1e-3
    window = fade[:, None]*fade
    for top, below in zip(rows, [*rows[1:], image.shape[-2]]):
        band = image[:, top:top+size].to(p)/(255 if image.dtype == torch.uint8 else 1)
        for some in (cols[k:k+bs] for k in range(0, len(cols), bs)):
            with evaluating(model): found = model(torch.stack([band[..., j:j+size] for j in some]))
            found = found.sigmoid() if found.shape[1] == 1 else found.softmax(1)    # one map, or classes that exclude each other
            for j, o in zip(some, found):
                if not total.ndim: total, weight = o.new_zeros(len(o), *band.shape[1:]), o.new_zeros(band.shape[1:])
                total[..., j:j+size] += o*window
                weight[:, j:j+size] += window
        n = below - top                                 # rows that no further tile touches
        yield (total[:, :n]/weight[:n])[:, :h, :w]
        total, weight = [F.pad(o[..., n:, :], (0, 0, 0, n)) for o in (total, weight)]


def segment(model, image, size:int=64, overlap:float=.5, bs:int=16)->torch.Tensor: # (out, h, w), probabilities
    "Segment a whole image, tile by tile; arguments as for `segment_bands`"
    return torch.cat(list(segment_bands(model, image, size, overlap, bs)), 1)


# --- scores ---

def segmentation_scores(
    prob,      # (..., h, w), probabilities
    mask,      # as prob: 1 on vessels
    fov=None,  # as prob: 1 inside the field of view; None: everything counts
)->dict:       # auc, dice and accuracy
    "Area under the ROC curve, and Dice and accuracy at a threshold of 1/2"
    p, y = [o.detach().cpu().flatten() for o in (prob, mask)]
    if fov is not None: p, y = [o[fov.cpu().flatten() > .5] for o in (p, y)]
    y, said = y > .5, p > .5
    if y.all() or not y.any(): raise ValueError('the mask has only one class: there is nothing to tell apart')
    dice, accuracy = 2*(said & y).sum()/(said.sum() + y.sum()), (said == y).float().mean()
    return dict(auc=float(roc_auc_score(y, p)), dice=float(dice), accuracy=float(accuracy))


def score_images(
    model,
    items,            # dicts with image (c, h, w), mask and fov (1, h, w)
    degrees:float=0., # turn them first
    **kwargs,         # of segment
)->dict:              # as segmentation_scores
    "Segment whole images and compare with their masks inside the field of view"
    turned = [[rotate_image(o[k], degrees) for k in ('image', 'mask', 'fov')] for o in items]
    probs = torch.cat([segment(model, image, **kwargs).cpu().flatten() for image, _, _ in turned])
    masks, fovs = [torch.cat([o[k].flatten() for o in turned]) for k in (1, 2)]
    return segmentation_scores(probs, masks, fovs > .99)


# --- pictures of maps ---

def middle(x, side:int=256):
    "The square of `side` pixels in the middle of a picture (c, h, w)"
    i, j = [max(0, (n - side)//2) for n in x.shape[1:]]
    return x[:, i:i+side, j:j+side]


def _classes(p): return p.argmax(0) if len(p) > 1 else (p[0] > .5).long()
def _grey(p): return (_classes(p)/(len(p) - 1) if len(p) > 1 else p[0]).cpu().numpy()


def errors_rgb(prob, mask):
    "White: right; red: invented; blue: missed; of several classes, orange: another class"
    said, true = _classes(prob), mask[0].round().long()
    rgb = torch.stack([said > 0, (said > 0) & (said == true), true > 0], -1).float()
    rgb[(said > 0) & (true > 0) & (said != true)] = torch.tensor([1., .6, 0])
    return rgb.numpy()


def _rows(rows, cols, size=1.35):
    fig, axs = plt.subplots(rows, cols, figsize=(size*cols, size*rows), dpi=80, layout='constrained', squeeze=False)
    plt.close(fig)
    for ax in axs.flat: ax.axis('off')
    return fig, axs


def show_maps(models, items, titles=(), inches=1.35, **kwargs):
    "A row for the middle of each picture: image, truth, then map and errors of every model; `kwargs` of `segment`"
    fig, axs = _rows(len(items), 2 + 2*len(models), inches)
    for r, (row, item) in enumerate(zip(axs, items)):
        image, mask = [middle(item[k]) for k in ('image', 'mask')]
        row[0].imshow(image.permute(1, 2, 0).numpy(), cmap='gray'); row[1].imshow(mask[0].numpy(), cmap='gray')
        for k, (name, model) in enumerate(models.items()):
            p = segment(model, image, **kwargs).cpu()
            row[2 + 2*k].imshow(_grey(p), cmap='gray', vmin=0, vmax=1); row[3 + 2*k].imshow(errors_rgb(p, mask))
            if r == 0: row[2 + 2*k].set_title(name, fontsize=8); row[3 + 2*k].set_title('red: invented\nblue: missed', fontsize=8)
    for ax, title in zip(axs[:, 0], titles or ['image']): ax.set_title(title, fontsize=8)
    axs[0, 1].set_title('truth', fontsize=8)
    return fig


def turning_maps(models, frames, inside:Any=1, inches=1.35, **kwargs):
    "Pictures in `frames`, {degrees: (c, h, w)}, and below each of them every model's map of it; `kwargs` of `segment`"
    fig, axs = _rows(1 + len(models), len(frames), inches)
    for col, (a, x) in zip(axs.T, frames.items()):
        col[0].imshow((x*inside).permute(1, 2, 0).numpy(), cmap='gray'); col[0].set_title(f'{a}°', fontsize=8)
        for ax, model in zip(col[1:], models.values()):
            ax.imshow(_grey(segment(model, x, **kwargs)*inside), cmap='gray', vmin=0, vmax=1)
    for ax, name in zip(axs[1:, 0], models): ax.set_title(name, fontsize=8)
    return fig


def show_turning_maps(models, item, degrees=(0, 30, 45, 60, 90)):
    "The middle of a photograph that rotates, and below it every model's map of it"
    image = middle(item['image'], min(192, *item['image'].shape[1:]))
    return turning_maps(models, {a: rotate_image(image, a) for a in degrees}, disc(*image.shape[1:]))


def map_picture(model, picture, threshold:float=.5, overlap:float=.5, progress:bool=False)->dict:
    """Probabilities and mask (h, w), and the picture with the mask on it (h, w, 3), all in uint8, of a picture (h, w, 3) or (h, w, 1)
    in uint8; of several classes the mask holds their numbers, and the probability is that of any but the first, the background"""
    size, (h, w) = model.img_size[0] if hasattr(model, 'img_size') else 64, picture.shape[:2]
    overlay = np.repeat(picture, 3, -1) if picture.shape[-1] == 1 else np.array(picture)
    found = dict(prob=np.empty((h, w), np.uint8), mask=np.empty((h, w), np.uint8), overlay=overlay)
    bands, top = segment_bands(model, torch.from_numpy(picture).permute(2, 0, 1), size, overlap), 0
    shown:Any = progress_bar(bands, total=len(tile_starts(h, size, overlap))) if progress else bands
    for p in shown:
        if not p.isfinite().all(): raise ValueError('the weights give no finite probabilities for this picture: get them again')
        rows, any_of, several = slice(top, top + p.shape[1]), (1 - p[0] if len(p) > 1 else p[0]).cpu().numpy(), len(p) > 1
        marked = any_of > threshold
        found['prob'][rows] = (any_of*255).round()
        found['mask'][rows] = marked*((p[1:].argmax(0) + 1).cpu().numpy() if several else 255)
        colours = CLASS_COLOURS[found['mask'][rows][marked] % len(CLASS_COLOURS) if several else 1]
        o = found['overlay'][rows]
        o[marked] = (.4*o[marked] + .6*colours).round()
        top += p.shape[1]
    return found


CLASS_COLOURS = np.array([[255, 160, 0], [0, 255, 76.5], [255, 0, 160], [0, 160, 255], [255, 255, 0], [160, 0, 255], [0, 255, 255]])


def _read(model, path):
    "The picture at `path` (h, w, c) for a network: in colour for photographs of retinas, as it is where it was trained on a folder"
    if 'maps' not in getattr(model, 'provenance', {}): return np.array(open_picture(path))
    im = to_rgb(open_picture(path, colour=False), path)
    return np.array(im) if model.config['in_channels'] == 3 else np.array(im.convert('L'))[..., None]


def save_maps(model, images, out='segmented', threshold:float=.5, overlap:float=.5):
    "Write NAME_prob.png, NAME_mask.png and NAME_overlay.png for every picture, as people see it"
    names, known = [Path(p).stem for p in images], getattr(model, 'provenance', {}).get('maps')
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f'several pictures are called {", ".join(sorted(twice))}: their results would overwrite each other.')
    if not known and model.config.get('in_channels', 3) != 3: raise ValueError('these weights are not for pictures in colour: give others.')
    for p in images: _read(model, p)                # all of them, before any work is done
    folder = check_room(out)
    reuse_memory()
    for name, path in zip(names, images):
        found = map_picture(model, _read(model, path), threshold, overlap, progress=True)
        for kind, o in found.items(): write_whole(folder/f'{name}_{kind}.png', lambda part: Image.fromarray(o).save(part, 'PNG'))
        print(f'{name}: {_shares(found["mask"], known)}; see {folder/f"{name}_overlay.png"}', flush=True)


def _shares(mask, names):
    "How much of a mask belongs to each class, and in how many parts"
    if not names: return f'{np.count_nonzero(mask)/mask.size:.1%} of the pixels are vessels'
    def one(marks, name):
        found:Any = ndimage.label(marks)
        return f'{marks.mean():.1%} of the pixels are {name}, in {found[1]:,} parts'
    return ', '.join(one(mask == i if len(names) > 2 else mask > 0, n) for i, n in enumerate(names[1:], 1))
