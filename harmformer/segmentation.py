"""Maps as pictures, and the command that segments a user's own: the segmentation side of the reports."""

__all__ = ['map_scores_at', 'show_maps', 'show_turning_maps', 'read_picture', 'harmformer_segment']

from pathlib import Path
from typing import Annotated
import matplotlib.pyplot as plt
import numpy as np
import torch
import fastcore.script
from fastcore.script import call_parse
from PIL import Image
from harmformer.core import disc, load_model, rotate_image
from harmformer.files import DataError, open_picture, picture_tensor
from harmformer.train import check_room, reuse_memory
from harmformer.unet import score_images, segment

TURNS = (0, 45, 90)


def argument(help, type=str, **kwargs):
    "The annotation of an argument of a command, with `kwargs` of argparse: fastcore 1 has a class for it, fastcore 2 takes what Python has."
    return fastcore.script.Param(help, type, **kwargs) if hasattr(fastcore.script, 'Param') else Annotated[type, help, kwargs]


def map_scores_at(model, items, degrees=TURNS):
    "Scores on whole images: auc, dice, accuracy, and auc_45, auc_90 with the images turned."
    upright, *turned = [score_images(model, items, a) for a in degrees]
    return {**upright, **{f'auc_{a}': s['auc'] for a, s in zip(degrees[1:], turned)}}


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


def read_picture(path):
    "An RGB picture as (3, h, w) in [0, 1], or an error that names the file."
    try: return picture_tensor(open_picture(path))
    except DataError as e: raise SystemExit(str(e))


def _save(path, array): Image.fromarray((array*255).round().clip(0, 255).astype(np.uint8)).save(path)


@call_parse
def harmformer_segment(
    images:argument('pictures to segment', nargs='+', opt=False),
    out:str='segmented',     # folder for the results
    weights:str='drive',     # a file, or the name of weights that come with the package
    threshold:float=.5,      # a pixel is vessel above this probability
    overlap:float=.5,        # share of a tile that its neighbour sees too
):
    "Write NAME_prob.png, NAME_mask.png and NAME_overlay.png for every picture"
    try: model = load_model(weights)
    except (ValueError, OSError) as e: raise SystemExit(str(e))
    if not hasattr(model, 'multiple'): raise SystemExit(f"{weights} holds a {model.config['name']}, which does not segment: give weights of harmformer_unet.")
    if not 0 < threshold < 1: raise SystemExit(f'--threshold is a probability between 0 and 1, not {threshold}.')
    if not 0 <= overlap < 1: raise SystemExit(f'--overlap is a share of a tile, at least 0 and less than 1, not {overlap}.')
    images = [images] if isinstance(images, (str, Path)) else images
    names = [Path(p).stem for p in images]
    if twice := {n for n in names if names.count(n) > 1}: raise SystemExit(f'several pictures are called {", ".join(sorted(twice))}: their results would overwrite each other.')
    pictures, folder = [read_picture(p) for p in images], check_room(out)   # all of them, before any work is done
    reuse_memory()
    for name, x in zip(names, pictures):
        p = segment(model, x, model.img_size[0] if hasattr(model, 'img_size') else 64, overlap, progress=True)[0].cpu().numpy()
        mask = p > threshold
        shown = np.where(mask[..., None], .4*x.permute(1, 2, 0).numpy() + .6*np.array([0, 1, .3]), x.permute(1, 2, 0).numpy())
        for kind, o in (('prob', p), ('mask', mask), ('overlay', shown)): _save(folder/f'{name}_{kind}.png', o)
        print(f'{name}: {mask.mean():.1%} of the pixels are vessels; see {folder/f"{name}_overlay.png"}', flush=True)
