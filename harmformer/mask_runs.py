"""Training on a folder of pictures and masks, from its settings to its report: `harmformer_train FOLDER` with images/ and masks/."""

__all__ = ['RECIPE', 'mask_config', 'mask_dls', 'mask_learner', 'train_masks', 'eval_masks', 'is_mask_run', 'mask_report']

import json
from pathlib import Path
from typing import Any
import pandas as pd
import torch
from harmformer.class_report import as_html, called, figure
from harmformer.core import count_params, create_model, load_model
from harmformer.data import TensorDL
from harmformer.mask_scores import dice_interval, score_pictures, tallies, total, turned_picture
from harmformer.masks import MaskLoss, MaskPatches, look_at_masks, with_colours
from harmformer.predict import side_of
from harmformer.report import append_row, read_json, read_run, write_page
from harmformer.runs import announce, best_of, run_folder, share_of, write_config
from harmformer.segment import middle, show_maps, turning_maps
from harmformer.system import check_room, commit, from_first, start_processes, write_whole
from harmformer.train import MapScore, fit, harmformer_learner, seconds_per_step
from fastai.data.core import DataLoaders
from fastai.distributed import teardown_distrib
from fastai.torch_core import default_device, rank_distrib

RECIPE = dict(model='harmformer_unet', epochs=10, bs=16, lr=.01, schedule='onecycle', wd=.01)
MODELS = 'harmformer_unet', 'unet'
MEANS = dict(dice='Dice', iou='IoU', auc='area under the ROC curve', f1='F1 of objects', found='objects found', true='objects there',
             dice_45='Dice, rotated by 45°', f1_45='F1, rotated by 45°', interval='95 %', patches='patches seen')


def mask_config(
    folder,              # with images/ and masks/
    classes='',          # names, or how many, the background first
    seed:int=0,
    size:int=None,       # patches per epoch
    valid:int=None,      # score at most this many pictures after each epoch
    pixels:int=None,     # side of the patches
    rival:str=None,      # names after commas, by default unet+rot; 'none' for none
    minutes:float=None,  # choose size so that the training takes about so long
    arguments:dict=None, # of the model
    **changes,           # of RECIPE, where they are not None
)->dict:                 # what config.json holds
    "What a run is going to do; errors in it are reported before any long computation"
    recipe = {**RECIPE, **{k: v for k, v in changes.items() if v is not None}}
    if unknown := set(recipe) - set(RECIPE): raise ValueError(f'a training on masks has no {", ".join(sorted(unknown))}: leave it out.')
    rivals = [o for o in (rival or 'unet+rot').split(',') if o != 'none']
    for m in (recipe['model'], *rivals):
        if m.removesuffix('+rot') not in MODELS:
            raise ValueError(f'{m} does not segment: on masks there are {", ".join(f"{o}, {o}+rot" for o in MODELS)}.')
    if minutes is not None and not minutes > 0: raise ValueError(f'--minutes is more than 0, not {minutes}.')
    place = Path(folder).resolve()
    config = dict(kind='masks', benchmark=str(place), title=place.name, classes=_classes(classes), seed=seed,
                  size=size or 1000, valid=valid or 12, img_size=pixels or 64, minutes=minutes, recipe=recipe, rivals=rivals,
                  arguments=arguments or {})
    try: _model(config, recipe['model'], 3, 1)
    except (TypeError, ValueError) as e: raise ValueError(f'--set or --pixels: {e}') from e
    return config


def _classes(given):
    "Names of classes from 'background,cell', from a number, or from a list"
    if isinstance(given, (list, tuple)): return list(given)
    given = str(given or '')
    if given.isdigit():
        if int(given) < 2: raise ValueError('--classes counts the background too: at least 2.')
        return ['background', *(f'class {i}' for i in range(1, int(given)))]
    names = [o.strip() for o in given.split(',') if o.strip()]
    if len(names) == 1: raise ValueError(f'--classes names only {names[0]}: name the background too, as the first.')
    if len({*names}) < len(names): raise ValueError('--classes names one class twice: give each its own name.')
    return names


def _model(config, name, channels, out):
    "The network `name`, and one pass to see that sizes fit"
    arguments = config['arguments'] if name == config['recipe']['model'] else {}
    model = create_model(name.removesuffix('+rot'), in_channels=channels, out_channels=out, img_size=config['img_size'], **arguments)
    if config['img_size'] % model.multiple:
        raise ValueError(f"patches of {config['img_size']} pixels: their side has to be a multiple of {model.multiple}.")
    return model


# --- loaders, metrics and a Learner ---

class MaskScore(MapScore):
    "One of `score_pictures` on `dls.pictures`; those that share a `cache` are computed together"
    def score(self, learn):
        if not self.cache: self.cache.update(score_pictures(learn.model, learn.dls.pictures))
        return self.cache[self._name]


def mask_dls(
    seen,               # of look_at_masks
    size:int=1000,      # patches per epoch
    bs:int=16,
    img_size:int=64,    # side of the patches
    seed:int=0,
    turn:bool=False,    # train on rotated patches
    valid:int=12,       # at most this many pictures to validate on
    device=None,
)->DataLoaders:         # with pictures, c, n_in, img_size, vocab, title and about
    "Random patches to train on, and fixed ones for the loss of validation; scores are of whole pictures"
    device = default_device() if device is None else device
    about = dict(names=seen.names, channels=seen.channels)
    train = MaskPatches(seen.parts['train'], size, img_size, augment=True, turn=turn, **about)
    fixed = MaskPatches(seen.parts['valid'], max(bs, min(size//4, 256)), img_size, key=('valid',), **about)
    dls:Any = DataLoaders(TensorDL(train, bs=min(bs, size), shuffle=True, drop_last=True, seed=seed, device=device),
                      TensorDL(fixed, bs=2*bs, device=device), device=device)
    dls.pictures, dls.chosen_by, dls.images = seen.parts['valid'][:valid], 'dice', None
    dls.c, dls.n_in, dls.img_size, dls.vocab = seen.out, seen.channels, (img_size, img_size), seen.names
    dls.title, dls.about = seen.folder.name, f'{size:,} patches of {img_size}×{img_size} per epoch' + ', rotated'*turn
    return dls


def mask_learner(dls, model, lr:float=.01, wd:float=.01):
    "A fastai Learner with AdamW, cross entropy + Dice, and scores of whole pictures; `model` is a network of create_model, or a name"
    cache = {}
    net:Any = create_model(model, in_channels=dls.n_in, out_channels=dls.c, img_size=dls.img_size[0]) if isinstance(model, str) else model
    learn:Any = harmformer_learner(dls, net, lr=lr, wd=wd, metrics=[MaskScore(n, cache) for n in ('dice', 'iou', 'auc', 'f1')])
    learn.loss_func = MaskLoss()
    return learn


# --- the run ---

def train_masks(config:dict, out='runs', name:str=None, resume:bool=False)->Path: # the folder of the run
    "Train the model of `config` and its rivals in a folder below `out`, score all on the pictures to test, write the report"
    bs = share_of(config['recipe']['bs'], start_processes())
    seen = look_at_masks(config['benchmark'], config['classes'])
    if not rank_distrib(): print(f"{config['title']}: {seen}", flush=True)
    names = [config['recipe']['model'], *[r for r in config['rivals'] if r != config['recipe']['model']]]
    path, config = from_first(lambda: _open(config, seen, names, out, name, resume))
    trained = {n: _train_one(n, path/(n if i else '.'), config, seen, resume, bs) for i, n in enumerate(names)}
    teardown_distrib()
    if rank_distrib(): return path
    write_whole(path/'results.json', json.dumps(_judge(trained, seen), indent=1))
    print(f'\n{read_json(path/"results.json")["says"]}\nReport: {mask_report(path, seen)}', flush=True)
    return path


def _open(config, seen, names, out, name, resume):
    "The folder of the run with its config.json, and the settings with what was chosen for the time that it may take"
    path = run_folder(config, out, name, resume)
    begun = resume and (path/'config.json').exists()
    if config['minutes'] and not begun: config = {**config, 'size': _fitting(config, seen, names)}
    return path, write_config(path, config, resume, kept=['size'])


def _learner(name, config, seen, bs):
    r = config['recipe']
    torch.manual_seed(config['seed'])
    dls = mask_dls(seen, config['size'], bs, config['img_size'], config['seed'], name.endswith('+rot'), config['valid'])
    return mask_learner(dls, _model(config, name, seen.channels, seen.out), r['lr'], r['wd'])


def _fitting(config, seen, names)->int:
    "Patches per epoch that the minutes of `config` allow, a tenth of them set aside for the scores"
    r = config['recipe']
    step = sum(seconds_per_step(_learner(n, config, seen, r['bs'])) for n in names)
    steps = int(.9*60*config['minutes']/(1.15*step*r['epochs']))
    return r['bs']*max(1, steps)


def _train_one(name, path, config, seen, resume, bs):
    "Train one network into the folder `path`, or finish it; with its best weights by the Dice of validation"
    if rank_distrib() == 0: check_room(path)
    r = config['recipe']
    learn:Any = _learner(name, config, seen, bs)
    announce(learn, name, r['epochs'])
    provenance = dict(benchmark=config['benchmark'], title=config['title'], seed=config['seed'], commit=commit(),
                      images=len(seen.parts['train']), maps=seen.names, rotations=name.endswith('+rot'))
    fit(learn, r['epochs'], r['lr'], r['schedule'], path=path, seed=config['seed'], resume=resume, provenance=provenance)
    return best_of(learn, path)


def _judge(models, seen)->dict:
    "What results.json holds: scores of all networks on the pictures to test, upright and rotated, and the result in a sentence"
    rows, pictures, test = [], {}, seen.parts['test']
    for i, (name, model) in enumerate(models.items()):
        found, turned = [tallies(model, test, a, progress=True) for a in (0, 45)]
        low, high = dice_interval(found)
        at_0, at_45 = total(found), total(turned)
        rows.append(dict(model=name, folder=name if i else '.', params=count_params(model), **at_0, interval=f'{low:.3f}–{high:.3f}',
                         dice_45=at_45['dice'], f1_45=at_45['f1'], patches=model.provenance['images_seen'],
                         seconds=model.provenance['seconds']))
        pictures[name] = {o['name']: t.scores()['dice'] for o, t in zip(test, found)}
    def one(r): return f"{_nice(r['model'])}: Dice {r['dice']:.3f}, rotated by 45° {r['dice_45']:.3f}; F1 of objects {r['f1']:.3f}"
    return dict(rows=rows, pictures=pictures, says='. '.join(map(one, rows)) + f', on {len(test)} test pictures.')


def _nice(name): return called(name).replace('harmformer_unet', 'Harmformer U-Net')


def eval_masks(model, folder, csv=None):
    "Print the scores of `model` on the pictures of `folder` that are set aside to test, upright and rotated, and add a row to `csv`"
    if not hasattr(model, 'multiple'): raise ValueError(f"a {model.config['name']} does not segment: give weights of harmformer_unet.")
    names = model.provenance.get('maps', ['background', 'foreground'])
    seen = look_at_masks(folder, names)
    if (seen.out, seen.channels) > (model.config['out_channels'], model.config['in_channels']):
        raise ValueError(f'these weights are for pictures without colour, and {folder} has some in colour: give others.')
    row = dict(title=seen.folder.resolve().name, model=model.config['name'], params=count_params(model))
    print(f"{row['model']} ({row['params']:,} parameters) on {row['title']}, {len(seen.parts['test'])} test pictures:", flush=True)
    for a in (0, 45):
        found = score_pictures(model, seen.parts['test'], a, progress=True)
        print(f'  {a}°: ' + ', '.join(f'{MEANS[k]} {v:.4f}' for k, v in found.items() if k in ('dice', 'iou', 'auc', 'f1')))
        row.update({f'{k}_{a}': v for k, v in found.items()})
    if csv: append_row(csv, row)


def is_mask_run(path)->bool:
    "Whether the folder of a run holds one on masks"
    file = Path(path)/'config.json'
    return file.is_file() and read_json(file).get('kind') == 'masks'


# --- the report ---

def _item(o, model, degrees=0):
    "A picture and its mask, rotated, as tensors (c, h, w) for a network"
    image, labels, _ = turned_picture(o['image'], o['labels'], degrees, most=256)
    marks = labels.astype(int) if model.config['out_channels'] > 1 else labels > 0
    return dict(image=with_colours(image, model.config['in_channels']), mask=torch.from_numpy(marks)[None].float())


def show_masks(models, pictures, titles=()):
    "A row for each picture: image, truth, then probabilities and errors of every network"
    model = next(iter(models.values()))
    return show_maps(models, [_item(o, model) for o in pictures], titles, 1.5, size=side_of(model), overlap=.25)


def show_turning_masks(models, o, degrees=(0, 30, 45, 60, 90)):
    "A picture that rotates, and below it every network's map"
    model = next(iter(models.values()))
    return turning_maps(models, {a: middle(_item(o, model, a)['image']) for a in degrees}, inches=1.6, size=side_of(model), overlap=.25)


def _by_picture(pictures):
    "The Dice of every picture to test, sorted, of every network"
    fig, ax = figure(size=(6, 2.6))
    for (name, found), c in zip(pictures.items(), ('C2', 'C1', 'C3', 'C0')):
        ax.plot(sorted(found.values()), f'{c}.-', label=_nice(name))
    ax.set(xlabel='pictures to test, the worst first', ylabel='Dice'); ax.legend()
    return fig


def mask_report(path, seen=None)->Path:
    "Write report.html into the folder of a finished run on masks"
    config, results, folders, logs = read_run(path)
    seen = seen or look_at_masks(config['benchmark'], config['classes'])
    rows = pd.DataFrame(results['rows'])
    models = {_nice(n): load_model(f) for n, f in folders.items()}
    first = results['pictures'][rows.model[0]]
    order = sorted(seen.parts['test'], key=lambda o: first.get(o['name'], 0))
    chosen = [order[i] for i in sorted({0, min(1, len(order)-1), len(order)//2, len(order)-1})]
    table = rows.drop(columns='folder').assign(model=rows.model.map(_nice)).rename(columns=MEANS)
    body = [table.to_html(index=False, float_format=lambda v: f'{v:.4f}'),
            '<p>Dice, IoU and area count the pixels of all test pictures together; an object is found if it shares more than half of the '
            'union with a true one. The interval is of the Dice, from drawing the test pictures anew.</p>',
            '<h2>Maps</h2><p>The two worst test pictures, the median and the best, by the Dice of the first network.</p>',
            as_html(show_masks(models, chosen, [f"Dice {first.get(o['name'], 0):.3f}" for o in chosen]),
                    'pictures, truth, maps and errors'),
            '<h2>Rotated</h2>', as_html(show_turning_masks(models, order[len(order)//2]), 'maps of a rotating picture'),
            '<h2>Picture by picture</h2>', as_html(_by_picture(results['pictures']), 'Dice of every test picture')]
    return write_page(path, config, [str(seen), results['says']], body, {_nice(n): log for n, log in logs.items()})
