"""What a run on classes trains, and for how long: the model for your own pictures, its rivals, and what fits into the minutes given."""

__all__ = ['RATES', 'rival_names', 'rival_settings', 'own_model', 'class_weights', 'step_seconds', 'total_seconds', 'fit_to_time']

import timeit
import torch
import torch.nn.functional as F
from harmformer.core import create_model, model_names, preset_for
from harmformer.survey import SIDES, balanced, usual_pixels

# learning rates of rivals on one's own pictures: the best of three each on EuroSAT's validation pictures, at 32 pixels with 300 to train
# on, one seed; cnn and resnet18 as in nbs/results/small_data_rates.csv, vit tried in the same way. Each is at the edge of what was tried.
RATES = dict(cnn=.004, resnet18=.0003, vit=.003)
TRAINING = 'model', 'epochs', 'small', 'bs', 'lr', 'schedule', 'wd', 'label_smoothing'  # what a recipe holds beside the model's arguments
FEWEST, MOST = 8, 40                        # epochs that --minutes aims at, at least and at most


def rival_names(given, benchmark:str, own:bool)->list:
    "['cnn', 'cnn+rot'] from 'cnn,cnn+rot'; '+rot' is training with random rotations"
    names = [o.strip() for o in (given or ('unet' if benchmark == 'drive' else 'cnn+rot' if own else 'cnn')).split(',')]
    for n in names:
        base = n.removesuffix('+rot')
        if base not in (*model_names(), 'none'):
            raise ValueError(f'--rival: no model is called {base!r}; there are {", ".join(model_names())}, and +rot after a name trains it '
                             'with rotations')
        if '+rot' in n and benchmark == 'drive': raise ValueError('--rival: +rot is for classes, and drive has none: leave it out.')
    return list(dict.fromkeys(n for n in names if n != 'none'))


def rival_settings(name:str, recipe:dict, side:int=None)->dict:
    "The recipe for a rival: as long as the model, and, on one's own pictures of `side` pixels, with its own rate and the model's disc"
    base = name.removesuffix('+rot')
    settings = {**{k: v for k, v in recipe.items() if k in TRAINING and k != 'small'}, 'model': base}
    if (name.endswith('+rot') or side) and base in ('cnn', 'vit', 'resnet18', 'resnet50'): settings['mask'] = 'tukey'
    if side: settings.update(lr=RATES.get(base, recipe['lr']), **_sized(base, side))
    return settings


def _sized(base, side):
    "Arguments that keep the rival's inner maps as they are at 32 pixels"
    if base.startswith('resnet'): return dict(reduce=max(k for k in (1, 2, 4) if k <= max(1, side//32)))
    return dict(patch=max(1, side//8)) if base == 'vit' else {}


def own_model(seen, model:str=None, pixels:int=None)->tuple: # (name, pixels)
    "The model for one's own pictures, and the side to which these are scaled: what was asked for, or what fits them"
    try:
        if pixels and not model: preset_for(pixels)
    except ValueError as e: raise ValueError(f'--pixels: {e}') from e
    if seen is None: return model, pixels
    pixels = pixels or usual_pixels(seen.headers)
    return model or preset_for(pixels), pixels


def class_weights(seen):
    "A weight of the loss for each class, where one has at least twice the pictures of another; otherwise None"
    counts = seen.y[seen.parts['train']].bincount(minlength=len(seen.names))
    if balanced(counts.tolist()): return None
    return [round(len(seen.parts['train'])/(len(seen.names)*int(k)), 4) for k in counts]


# --- time ---

def step_seconds(settings:dict, side:int, channels:int, classes:int)->float:
    "How long a training step takes here, tried on noise"
    arguments = {k: v for k, v in settings.items() if k not in TRAINING}
    model = create_model(settings['model'], in_channels=channels, img_size=side, num_classes=classes, **arguments)
    x, y = torch.randn(settings['bs'], channels, side, side), torch.arange(settings['bs']) % classes
    return min(timeit.repeat(lambda: F.cross_entropy(model(x), y).backward(), number=1, repeat=3))


def _epoch(settings, side, channels, classes, n):
    "Seconds of an epoch of `n` pictures, with validation and what is around a step"
    return 1.35*step_seconds(settings, side, channels, classes)*max(1, n//settings['bs'])


def total_seconds(seen, recipe:dict, side:int, rivals:list, size:int=None)->tuple: # (per epoch, beside that)
    "Seconds that a run takes: for each epoch of the model, with its rivals as many images and as long; and for tests and report"
    n, about = min(size or len(seen.files), len(seen.parts['train'])), (seen.as_stored or 3, len(seen.names))
    ours = _epoch(recipe, side, *about, n)
    theirs = [_epoch(rival_settings(r, recipe, side), side, *about, n) for r in rivals]
    asked = 6*(len(seen.parts['test']) + len(seen.parts['valid'])) + 1500           # pictures that are looked at in the end
    return ours*(1 + len(rivals)) + sum(theirs), 20 + .4*(ours + sum(theirs))/n*asked


def fit_to_time(seen, recipe:dict, minutes:float, side:int, rivals:list, fixed=(), size:int=None)->tuple: # (recipe, side, size)
    "Epochs that fit into the minutes; where they would be too few, smaller pictures, a narrower model, and at last fewer pictures"
    tried = [(s, w) for s in reversed(SIDES) if s <= side for w in ('small', 'tiny') if w == 'small' or s == SIDES[0]]
    if 'model' in fixed or 'pixels' in fixed: tried = [(side, None)]
    epochs = 0.
    for s, width in tried:
        recipe, side = {**recipe, **({'model': preset_for(s, width)} if width else {})}, s
        each, rest = total_seconds(seen, recipe, side, rivals, size)
        epochs = max(0., 60*minutes - rest)/each
        if epochs >= FEWEST: break
    if 'epochs' in fixed: return recipe, side, size
    if epochs < 2:
        n = min(size or len(seen.files), len(seen.parts['train']))
        size, epochs = max(recipe['bs'], int(n*epochs/2)), 2
    return {**recipe, 'epochs': min(MOST, int(epochs))}, side, size
