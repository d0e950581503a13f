"""What trained models make of whole pictures: maps by tiles, their scores and pictures; classes."""

__all__ = ['show_maps', 'show_turning_maps', 'segment_bands', 'map_picture', 'save_maps', 'classify_batches', 'classify_pictures']

import math
from pathlib import Path
import matplotlib.pyplot as plt
import numpy as np, pandas as pd
import torch
from fastprogress import progress_bar
from PIL import Image
from harmformer.core import disc, rotate_image
from harmformer.files import open_picture, read_pictures
from harmformer.system import check_room, reuse_memory, write_whole
from harmformer.unet import segment, tile_starts

def _middle(item, side):
    "The square of `side` pixels in the middle of a photograph, its mask and its field of view."
    h, w = item['image'].shape[1:]
    i, j = max(0, (h - side)//2), max(0, (w - side)//2)
    return {k: item[k][:, i:i+side, j:j+side] for k in ('image', 'mask', 'fov')}


def errors_rgb(prob, mask):
    "White: vessels found; red: invented; blue: missed."
    said, true = prob[0] > .5, mask[0] > .5
    return torch.stack([said, said & true, true], -1).float().numpy()


def _rows(rows, cols, size=1.35):
    fig, axs = plt.subplots(rows, cols, figsize=(size*cols, size*rows), dpi=80, layout='constrained', squeeze=False)
    plt.close(fig)
    for ax in axs.flat: ax.axis('off')
    return fig, axs


def show_maps(models, items, side=256):
    "A row for each photograph: image, truth, then map and errors of every model."
    fig, axs = _rows(len(items), 2 + 2*len(models))
    for r, (row, item) in enumerate(zip(axs, items)):
        o = _middle(item, side)
        row[0].imshow(o['image'].permute(1, 2, 0).numpy()); row[1].imshow(o['mask'][0].numpy(), cmap='gray')
        for k, (name, model) in enumerate(models.items()):
            p = segment(model, o['image']).cpu()
            row[2 + 2*k].imshow(p[0].numpy(), cmap='gray', vmin=0, vmax=1); row[3 + 2*k].imshow(errors_rgb(p, o['mask']))
            if r == 0: row[2 + 2*k].set_title(name, fontsize=8); row[3 + 2*k].set_title('red: invented\nblue: missed', fontsize=7)
    axs[0, 0].set_title('image', fontsize=8); axs[0, 1].set_title('truth', fontsize=8)
    return fig


def show_turning_maps(models, item, degrees=(0, 30, 45, 60, 90), side=192):
    "A photograph that turns, and below it every model's map of it."
    fig, axs = _rows(1 + len(models), len(degrees))
    image = _middle(item, min(side, *item['image'].shape[1:]))['image']
    inside = disc(*image.shape[1:])
    for col, a in zip(axs.T, degrees):
        x = rotate_image(image, a)
        col[0].imshow((x*inside).permute(1, 2, 0).numpy()); col[0].set_title(f'{a}°', fontsize=8)
        for ax, (name, model) in zip(col[1:], models.items()):
            ax.imshow((segment(model, x).cpu()[0]*inside).numpy(), cmap='gray', vmin=0, vmax=1)
            if a == degrees[0]: ax.set_title(name, fontsize=8)
    return fig


# --- a picture of any size, by rows of tiles: no more than one row of them is in memory as numbers of four bytes ---

@torch.no_grad()
def segment_bands(
    model,            # makes logits (b, out, size, size) of images (b, c, size, size)
    picture,          # (h, w, c) in uint8, at least as large as a tile
    size:int=64,      # of the tiles
    overlap:float=.5, # share of a tile that its neighbour sees too, at least
    bs:int=16,        # tiles at a time
):
    "Yield the probabilities (rows, w) of the first map from top to bottom: together they are what `segment` returns"
    (h, w), p, training = picture.shape[:2], next(model.parameters()), model.training
    fade = torch.sin(math.pi*(torch.arange(size, device=p.device, dtype=p.dtype) + .5)/size)**2 + 1e-3
    window, cols, rows = fade[:, None]*fade, tile_starts(w, size, overlap), tile_starts(h, size, overlap)
    total, weight = p.new_zeros(size, w), p.new_zeros(size, w)
    model.eval()
    for top, below in zip(rows, [*rows[1:], h]):
        band = torch.from_numpy(picture[top:top+size]).permute(2, 0, 1).to(p)/255
        for k in range(0, len(cols), bs):
            tiles = torch.stack([band[..., j:j+size] for j in cols[k:k+bs]])
            for j, o in zip(cols[k:k+bs], model(tiles).sigmoid()):
                total[:, j:j+size] += o[0]*window
                weight[:, j:j+size] += window
        n = below - top                                 # rows that no further tile touches
        yield total[:n]/weight[:n]
        total, weight = [torch.cat([o[n:], o.new_zeros(n, w)]) for o in (total, weight)]
    model.train(training)


def _bands(model, picture, size, overlap):
    "As `segment_bands`, for small pictures too"
    if min(picture.shape[:2]) >= size: yield from segment_bands(model, picture, size, overlap)
    else: yield segment(model, torch.from_numpy(picture).permute(2, 0, 1)/255, size, overlap)[0]


def map_picture(model, picture, threshold:float=.5, overlap:float=.5, progress:bool=False)->dict:
    "Probabilities and mask (h, w), and the picture with the mask on it (h, w, 3), all in uint8, of a picture (h, w, 3) in uint8"
    size, (h, w) = model.img_size[0] if hasattr(model, 'img_size') else 64, picture.shape[:2]
    found = dict(prob=np.empty((h, w), np.uint8), mask=np.empty((h, w), np.uint8), overlay=np.array(picture))
    bands, top = _bands(model, picture, size, overlap), 0
    for p in progress_bar(bands, total=len(tile_starts(h, size, overlap))) if progress else bands:
        if not p.isfinite().all(): raise ValueError('the weights give no finite probabilities for this picture: get them again')
        rows, p = slice(top, top + len(p)), p.cpu().numpy()
        found['prob'][rows], found['mask'][rows] = (p*255).round(), 255*(p > threshold)
        o = found['overlay'][rows]
        o[p > threshold] = (.4*o[p > threshold] + .6*np.array([0, 255, 76.5])).round()
        top += len(p)
    return found


def save_maps(model, images, out='segmented', threshold:float=.5, overlap:float=.5):
    "Write NAME_prob.png, NAME_mask.png and NAME_overlay.png for every picture, as people see it"
    names = [Path(p).stem for p in images]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f'several pictures are called {", ".join(sorted(twice))}: their results would overwrite each other.')
    if model.config.get('in_channels', 3) != 3: raise ValueError('these weights are not for pictures in colour: give others.')
    for p in images: open_picture(p)                # all of them, before any work is done
    folder = check_room(out)
    reuse_memory()
    for name, path in zip(names, images):
        found = map_picture(model, np.array(open_picture(path)), threshold, overlap, progress=True)
        for kind, o in found.items(): write_whole(folder/f'{name}_{kind}.png', lambda part: Image.fromarray(o).save(part, 'PNG'))
        share = np.count_nonzero(found['mask'])/found['mask'].size
        print(f'{name}: {share:.1%} of the pixels are vessels; see {folder/f"{name}_overlay.png"}', flush=True)


# --- classes of pictures ---

def classify_batches(
    model,                           # a classifier of create_model or load_model; evaluated in eval mode
    pictures,                        # files
    vocab=None, mean=None, std=None, # what the model has to know about pictures; None: what its weights say; of DataLoaders: `dls.reading`
    bs:int=64,                       # pictures at a time
):
    "Yield tables as of `classify_pictures`, one for every `bs` pictures"
    given = {k: v for k, v in dict(vocab=vocab, mean=mean, std=std).items() if v is not None}
    said = {**getattr(model, 'provenance', {}), **given}
    if missing := [k for k in ('vocab', 'mean', 'std') if k not in said]:
        raise ValueError(f'the weights do not say {" and ".join(missing)}: only classifiers that harmformer_train made do')
    (device, config, training), pictures = (next(model.parameters()).device, model.config, model.training), list(pictures)
    mean, std = [torch.tensor(said[k], dtype=torch.float32).view(-1, 1, 1) for k in ('mean', 'std')]
    side = config['img_size'] if isinstance(config['img_size'], int) else config['img_size'][0]
    for i in range(0, len(pictures), bs):
        x = read_pictures(pictures[i:i+bs], side).float()
        if config['in_channels'] == 1: x = x.mean(1, keepdim=True)
        model.eval()
        with torch.no_grad(): p = model(((x - mean)/std).to(device)).softmax(1).cpu()
        model.train(training)
        if not p.isfinite().all(): raise ValueError('the weights give no finite probabilities for these pictures: get them again')
        names, classes = list(map(str, pictures[i:i+bs])), [said['vocab'][k] for k in p.argmax(1)]
        yield pd.DataFrame({'picture': names, 'class': classes, 'probability': p.amax(1).numpy()})


def classify_pictures(model, pictures, vocab=None, mean=None, std=None, bs:int=64)->pd.DataFrame: # picture, class, probability
    "What is on each picture, whichever way up it is: see `classify_batches`"
    tables = classify_batches(model, pictures, vocab, mean, std, bs)
    return pd.concat([pd.DataFrame(columns=['picture', 'class', 'probability']), *tables], ignore_index=True)
