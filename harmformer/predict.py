"""What is on pictures, as a trained classifier sees it."""

__all__ = ['classify_batches', 'classify_pictures', 'save_table', 'said_conversions', 'side_of']

import pandas as pd, torch
from harmformer.files import open_picture
from harmformer.pixels import read_scaled
from harmformer.system import evaluating, write_whole


def side_of(model, usual:int=64)->int:
    "The side of the images that a model was made for, or `usual` if it does not say"
    size = model.config.get('img_size', usual)
    return size if isinstance(size, int) else size[0]


def classify_batches(
    model,                           # a classifier of create_model or load_model; evaluated in eval mode
    pictures,                        # files
    vocab=None, mean=None, std=None, # what the model has to know about pictures; None: what its weights say; of DataLoaders: `dls.reading`
    bs:int=64,                       # pictures at a time
    as_stored:int=None,              # channels whose values are taken as they are stored, as in `dls.reading`
):
    "Yield tables as of `classify_pictures`, one for every `bs` pictures"
    given = {k: v for k, v in dict(vocab=vocab, mean=mean, std=std, as_stored=as_stored).items() if v is not None}
    said = {**getattr(model, 'provenance', {}), **given}
    if missing := [k for k in ('vocab', 'mean', 'std') if k not in said]:
        raise ValueError(f'the weights do not say {" and ".join(missing)}: only classifiers that harmformer_train made do')
    device, config, pictures = next(model.parameters()).device, model.config, list(pictures)
    mean, std = [torch.tensor(said[k], dtype=torch.float32).view(-1, 1, 1) for k in ('mean', 'std')]
    for i in range(0, len(pictures), bs):
        x = read_scaled(pictures[i:i+bs], side_of(model), said.get('as_stored') or 0).float()
        if config['in_channels'] == 1: x = x.mean(1, keepdim=True)
        with torch.no_grad(), evaluating(model): z = model(((x - mean)/std).to(device)).cpu()
        p = (z/(said.get('temperature') or 1.)).softmax(1)
        if not p.isfinite().all(): raise ValueError('the weights give no finite probabilities for these pictures: get them again')
        names, classes = list(map(str, pictures[i:i+bs])), [said['vocab'][k] for k in p.argmax(1)]
        yield pd.DataFrame({'picture': names, 'class': classes, 'probability': p.amax(1).numpy()})


def classify_pictures(
    model, pictures, vocab=None, mean=None, std=None, bs:int=64, as_stored:int=None,
)->pd.DataFrame: # picture, class, probability
    "What is on each picture, whichever way up it is: see `classify_batches`"
    tables = classify_batches(model, pictures, vocab, mean, std, bs, as_stored)
    return pd.concat([pd.DataFrame(columns=['picture', 'class', 'probability']), *tables], ignore_index=True)


def save_table(file, tables): # of classify_batches
    "Write tables as one CSV file"
    write_whole(file, pd.concat(tables).to_csv(index=False, lineterminator='\n'))


def said_conversions(pictures, side:int|None=None):
    "Print how many pictures are cut and scaled to `side` pixels, and how many lose their alpha channel"
    found = [open_picture(p, colour=False) for p in pictures]
    scaled = sum(im.size != (side, side) for im in found) if side else 0
    clear = sum(im.mode.endswith('A') or 'transparency' in im.info for im in found)
    if scaled: print(f'{scaled} of {len(found)} pictures are cut to their middle square and scaled to {side}×{side} pixels.', flush=True)
    if clear: print(f'{clear} of {len(found)} pictures are partly transparent: there they count as black.', flush=True)
