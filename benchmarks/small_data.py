"""Error against the number of training pictures, for Harmformer and for rivals that are trained with random rotations.
Adds rows to nbs/results/small_data.csv, which 27_small_data shows; a row that is there is not computed again.

    python benchmarks/small_data.py                       all that is missing, the most telling rows first
    python benchmarks/small_data.py --data eurosat --pixels 32 --seeds 0
    python benchmarks/small_data.py --tune                learning rates, on validation pictures: small_data_rates.csv
    python benchmarks/small_data.py --mirror_digits       digits and their mirror images, class by class: mirrored_digits.csv

The learning rate of a model is the best of TRIED: by the mean error on upright and rotated validation pictures of EuroSAT (300 training
pictures, 32 pixels).
Every model sees as many images, in batches of 16, with AdamW and one cycle of the learning rate, and is tested as it is at the end: nothing
is chosen on the test pictures. Everyone sees the same disc of a picture. `seconds` is processor time of the training, in one thread.
Of the names, `+rot` trains with random rotations, `+flip` has reflections=True, `+wide` is wider by a quarter, so that reflections leave
as many parameters as without, `+constant` has constant=True, and `+long` sees as many images as the CNN can see in the time of Harmformer. `harmformer+long` and
`resnet18+rot+long` see as many, which takes about six and fourteen minutes: they and `+constant` run only where --models names them. Their learning rates
are those of the short trainings; that of `cnn+rot+long` was tuned for the long one.
"""
import itertools, time
from pathlib import Path
import pandas as pd, torch
import torch.nn.functional as F
from fastcore.script import call_parse
from torchvision.transforms.v2.functional import resize
from harmformer.core import PRESETS, count_params, create_model, mirror_image, preset_for
from harmformer.data import ImageSet, TensorDL, _split, fixed_angles, pad_images
from harmformer.files import find_file, read_digits, read_pcam
from harmformer.report import append_row
from harmformer.survey import read_folder
from harmformer.system import commit, evaluating, random_stream, reuse_memory
from harmformer.train import accuracy_on

RESULTS = Path(__file__).resolve().parent.parent/'nbs'/'results'
SEEN, BATCH = 4000, 16
SIZES = 50, 100, 300, 1000, None                            # None: all
MODELS = 'harmformer', 'cnn+rot', 'resnet18+rot', 'harmformer+flip', 'harmformer+flip+wide', 'cnn+rot+long'
EXTRA = 'harmformer+long', 'resnet18+rot+long', 'harmformer+constant', 'harmformer+constant+long'
TRIED = {'harmformer': (.002, .004, .008), 'cnn+rot': (.001, .002, .004, .01, .02), 'resnet18+rot': (.0001, .0003, .001, .003),
         'cnn+rot+long': (.001, .002, .004, .01)}


def _eurosat(pixels):
    x, y, names = read_folder(find_file('real/eurosat'), pixels)
    return [(x[i], y[i]) for i in _split(y, 'small-data', .1, .3)], names


def _pcam(pixels):
    (x, y), (xt, yt) = read_pcam('train', 3000), read_pcam('valid', 1000)
    x, xt = [resize(o, [pixels, pixels], antialias=True) for o in (x, xt)]
    return [(x, y), (xt[:300], yt[:300]), (xt[300:], yt[300:])], ['normal', 'tumour']


def _digits(pixels):
    x, y = read_digits()
    x = pad_images(x) if pixels == 32 else resize(pad_images(x), [pixels, pixels], antialias=True)
    return [(x[i], y[i]) for i in _split(y, 'digits', .1, .2)], list('0123456789')


DATA = dict(eurosat=_eurosat, pcam=_pcam, digits=_digits)


def load(data, pixels):
    "Pictures to train, validate and test on, standardised by those to train on"
    parts, names = DATA[data](pixels)
    seen = parts[0][0].float()
    mean, std = [getattr(seen, f)((0, 2, 3)).round().clamp(min=1.).tolist() for f in ('mean', 'std')]
    return [ImageSet(x, y, names, mean, std) for x, y in parts]


def few(train, n, *key):
    "`n` pictures of the set, of every class equally many where it has them, and fewer are among more"
    order = torch.from_numpy(random_stream('small-data', *key).permutation(len(train)))
    nth = F.one_hot(train.y[order]).cumsum(0).gather(1, train.y[order][:, None])[:, 0]     # of its class
    return train.subset(order[nth.argsort(stable=True)][:n])


def make(model, pixels, classes, colours):
    "A model of MODELS, for pictures of this size"
    base, *extra = model.split('+')
    sizes = dict(num_classes=classes, in_channels=colours, img_size=pixels)
    if base == 'harmformer':
        wide = dict(channels=tuple(c*5//4 for c in PRESETS[preset_for(pixels)]['channels']), head_dim=20) if 'wide' in extra else {}
        return create_model(preset_for(pixels), **sizes, reflections='flip' in extra, constant='constant' in extra, **wide)
    return create_model(base, **sizes, mask='tukey', **(dict(reduce=pixels//32) if base == 'resnet18' else {}))


def fit(model, data, lr, seed, steps):
    "Train on batches of a set, and the processor seconds that it took"
    opt = torch.optim.AdamW(model.parameters(), lr, weight_decay=.01, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, lr, steps, pct_start=.25, final_div_factor=1e3)
    loader = TensorDL(data, bs=BATCH, shuffle=True, drop_last=True, seed=seed, device='cpu')
    batches, start = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps), time.process_time()
    for x, y in batches:
        F.cross_entropy(model(x), y, label_smoothing=.1).backward()
        opt.step(); cycle.step(); opt.zero_grad()
    return time.process_time() - start


def error(model, data): return 1 - accuracy_on(model, TensorDL(data, bs=100, device='cpu'))


def seen(model, data, pixels):
    """Images that a model sees: SEEN, or as many as the CNN can see in the time of Harmformer, by the rows that are there. All long
    trainings on a set see as many, those of the first row that was measured."""
    if 'long' not in model: return SEEN
    rows = pd.read_csv(RESULTS/'small_data.csv')
    rows = rows[(rows.data == data) & (rows.pixels == pixels)]
    if len(long := rows[rows.model.str.endswith('+long')]): return int(long.images_seen.iloc[0])
    took = rows.groupby('model').seconds.mean()
    return round(SEEN*took['harmformer']/took['cnn+rot'])


def trained(data, pixels, model, n, seed, sets, lr, images):
    "A model after its training, the pictures that it saw and the seconds"
    torch.manual_seed(seed)
    part = few(sets[0], n, data, seed) if n else sets[0]
    part.augment = tuple(o for o in model.split('+')[1:] if o == 'rot')
    net = make(model, pixels, len(part.vocab), part.x.shape[1]).train()
    return net, part, fit(net, part, lr, seed, images//BATCH)


def measure(data, pixels, model, n, seed, sets, lr, test):
    "A row of the table"
    images = seen(model, data, pixels)
    net, part, seconds = trained(data, pixels, model, n, seed, sets, lr, images)
    rotated = test.turned(fixed_angles(len(test), 'small-data', data, 'test'))
    return dict(data=data, pixels=pixels, model=model, n=len(part), seed=seed, images_seen=images//BATCH*BATCH, seconds=round(seconds, 1),
                commit=commit(), error_upright=round(error(net, test), 5), error_rotated=round(error(net, rotated), 5),
                params=count_params(net), samples=len(test), rate=lr, date=time.strftime('%Y-%m-%d'))


def todo(data, pixels, seeds, sizes, models):
    "What to compute, in this order: a data set at 32 pixels after the other, then at 64; within it a seed after the other"
    return [(d, p, m, n, s) for p in pixels for d in data for s in seeds for n in sizes for m in models]


def have(file):
    "The keys of the rows that are there, with the learning rate"
    if not file.exists(): return set()
    rows = pd.read_csv(file)
    return set(zip(rows.data, rows.pixels, rows.model, rows.n, rows.seed, rows.rate))


def rates():
    "{model: learning rate}: the best by validation, as --tune found them"
    rows = pd.read_csv(RESULTS/'small_data_rates.csv')
    rows['error'] = rows.error_upright + rows.error_rotated
    best = rows.sort_values('error', kind='stable').groupby('model').rate.first().to_dict()
    return {m: best.get(m, best['harmformer' if m.startswith('harmformer') else m.removesuffix('+long')]) for m in (*MODELS, *EXTRA)}


def mirrored_row(model, seed, lr):
    "A row about all digits: the errors of every class, as they are and mirrored, and how many of 2 are called 5 and of 5 are called 2"
    sets = load('digits', 32)
    net, part, _ = trained('digits', 32, model, None, seed, sets, lr, SEEN)
    x, y = sets[2].batch(range(len(sets[2])))
    row = dict(model=model, n=len(part), seed=seed, images_seen=SEEN, params=count_params(net), rate=lr, commit=commit(),
               date=time.strftime('%Y-%m-%d'))
    with evaluating(net), torch.no_grad():
        for end, views in (('', x), ('_mirrored', mirror_image(x, 90))):
            said = torch.cat([net(o).argmax(1) for o in views.split(100)])
            row[f'error{end}'] = (said != y).float().mean().item()
            row.update({f'error_{c}{end}': (said[y == c] != c).float().mean().item() for c in range(10)})
            row.update({f'{a}_as_{b}{end}': (said[y == a] == b).float().mean().item() for a, b in ((2, 5), (5, 2))})
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}


def mirror(models, seeds):
    "Add the missing rows about digits and their mirror images"
    file, best = RESULTS/'mirrored_digits.csv', rates()
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=['model', 'seed'])
    done = set(zip(rows.model, rows.seed))
    for s, m in itertools.product(seeds, models):
        if (m, s) in done: continue
        append_row(file, row := mirrored_row(m, s, best[m]))
        print(*row.values(), flush=True)


@call_parse
def main(
    data:str='eurosat,pcam,digits', # with commas between them
    pixels:str='32,64',             # sides of the pictures
    seeds:str='0,1,2',              # of weights, order and choice of pictures
    models:str=','.join(MODELS),    # some of them
    sizes:str='',                   # some numbers of pictures, 0 for all there are; by default all of SIZES
    tune:bool=False,                # try learning rates on the validation pictures of EuroSAT instead
    mirror_digits:bool=False,       # look at digits and their mirror images instead
):
    "Measure errors of small training sets"
    torch.set_num_threads(1)
    reuse_memory()
    data, models, (pixels, seeds) = data.split(','), models.split(','), [list(map(int, o.split(','))) for o in (pixels, seeds)]
    if mirror_digits: return mirror([m for m in models if m.startswith('harmformer')], seeds)
    file = RESULTS/('small_data_rates.csv' if tune else 'small_data.csv')
    numbers = [int(n) or None for n in sizes.split(',')] if sizes else SIZES
    cells = todo(['eurosat'], [32], [9], [300], [m for m in models if m in TRIED]) if tune else todo(data, pixels, seeds, numbers, models)
    sets, done, best = {}, have(file), {} if tune else rates()
    for d, p, m, n, s in cells:
        if (d, p) not in sets: sets = {(d, p): load(d, p)}
        train, valid, test = sets[d, p]
        for lr in TRIED[m] if tune else [best[m]]:
            if (d, p, m, min(n or len(train), len(train)), s, lr) in done: continue
            row = measure(d, p, m, n, s, sets[d, p], lr, valid if tune else test)
            append_row(file, row)
            print(*row.values(), flush=True)
