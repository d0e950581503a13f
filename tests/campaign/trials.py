"""Single trials of the campaign. Each takes a `random.Random`, tries one thing, and says how it ended:

right        what was asked for, finite, of the right shape, and where it can be checked the right answer
clear error  one sentence of our own
unclear      another exception: somebody else's words from deep inside
silent wrong an answer that is not right, without a word
"""
import json, math, random, tempfile
from functools import lru_cache
from pathlib import Path
import h5py, numpy as np, torch
from PIL import Image
from harmformer.core import create_model, load_model, save_model
from harmformer.files import DataError, _h5, read_idx, read_pictures
from harmformer.report import read_json
from harmformer.system import read_tensors

ROOT = Path(__file__).resolve().parents[2]
BASE = dict(channels=(2, 2), depth=1, heads=1, head_dim=4, kernel_size=5, rings=1, img_size=16, upscale=1)
NAN = float('nan')
ARGUMENTS = dict(  # good values first, then what people might type
    num_classes=[2, 10, 1, 0, -1, 3.5, 'ten', None, True], in_channels=[1, 3, 0, -2], channels=[(2,), (2, 3), [2, 2], (), (0,), (2, -1), 'ab', ((2,),), (2.5,)],
    convs=[1, 2, (1, 2), 0, -1, 'x'], depth=[0, 1, 2, -1, 1.5, '1'], heads=[1, 2, 0, -1, NAN], head_dim=[2, 4, 0, -4], kernel_size=[3, 5, 7, 9, 4, 1, -3, 999],
    rings=[1, 2, 3, 0, 50], orders=[(-1, 0, 1), (0, 1), (0,), (-2, -1, 0, 1, 2), (), (1, 1), 'x', (.5,), (99,), 3], upscale=[1, 2, 0, -1],
    mask=['tukey', 'circle', None, 'square', 7], norm=['fused', 'hnet', 'best', None], stats=['order', 'shared', 'x'], layer_norm=['token', 'map', 'x'],
    mixing=['same', 'all', 'cross_values', 'cross_keys', 'cross_queries', 'x', 4], rpe=['circular', None, 'x'], keep_phase=[True, False], residual=[True, False],
    dropout=[0., .1, 1.5, -1, NAN], norm_eps=[1., 1e-3, NAN, -1, math.inf], mlp_ratio=[1., 2., 0, -1], img_size=[16, 8, (16, 8), 0, -8, 'big'],
    engine=['auto', 'fft', 'direct', 'x'], chunk=[None, 1, 7, 0], colour=[3])


def _ours(e):
    "Was the exception raised by the package itself, and does it say something?"
    tb = e.__traceback__
    while tb.tb_next: tb = tb.tb_next
    mine = Path(tb.tb_frame.f_code.co_filename).resolve().parent.name == 'harmformer'
    return mine and isinstance(e, (ValueError, TypeError, DataError, OSError, FloatingPointError)) and 10 < len(str(e)) < 1000 and '\n' not in str(e)


def outcome(f):
    "How a call ended, and a line about it"
    try: res = f()
    except Exception as e: return ('clear error' if _ours(e) else 'unclear'), f'{type(e).__name__}: {e}'[:300]
    return res if isinstance(res, tuple) else (res, '')


# --- calls ---

def _images(rng, c, size):
    "Images for a model of `c` colours and this side, or what people might give instead; whether they can be right"
    side = size if isinstance(size, int) else 16
    x = torch.rand(rng.choice([2, 2, 3, 1]), c, side, side, generator=torch.Generator().manual_seed(rng.randrange(1000)))
    change = '' if rng.random() < .6 else rng.choice(['double', 'half', 'uint8', 'complex', 'numpy', 'list', 'empty', 'flat', 'colours', 'oblong', 'odd', 'tiny', 'huge', 'small', 'none'])
    changed = dict(double=lambda: x.double(), half=lambda: x.half(), uint8=lambda: (x*255).byte(), complex=lambda: x + 0j, numpy=lambda: x.numpy(), list=lambda: x.tolist(),
                   empty=lambda: x[:0], flat=lambda: x[0], colours=lambda: x.repeat(1, 2, 1, 1), oblong=lambda: x[..., :side//2], odd=lambda: x[..., 1:, 1:],
                   tiny=lambda: x[..., :1, :1], huge=lambda: x*1e20, small=lambda: x*1e-30, none=lambda: None)
    return (changed[change]() if change else x), change


def call_model(rng):
    "Make a small model with a few random arguments, and ask it about random images"
    name = rng.choice(['harmformer_mnist', 'harmformer_digits', 'hnet_mnist', 'harmformer_unet', 'cnn', 'vit', 'unet', 'resnet'] if rng.random() < .5 else ['harmformer_mnist'])
    args = dict(BASE) if name.startswith(('harm', 'hnet')) else {}
    if name == 'harmformer_unet': args.pop('upscale')
    if name == 'hnet_mnist': args.update(depth=0)
    args.update({k: rng.choice(ARGUMENTS[k][:2] if rng.random() < .6 else ARGUMENTS[k]) for k in rng.sample(list(ARGUMENTS), rng.choice([0, 1, 1, 2, 3]))})
    told = f'create_model({name!r}, {args})'
    def go():
        torch.manual_seed(0)
        model = create_model(name, **args).eval()
        x, change = _images(rng, model.config['in_channels'], model.config['img_size'])
        if rng.random() < .2: model.train()
        y = model(x)
        maps = 'out_channels' in model.config
        want = (len(x), model.config['out_channels'], *x.shape[-2:]) if maps else (len(x), model.config['num_classes'])
        if tuple(y.shape) != want or not y.isfinite().all(): return 'silent wrong', f'{told} on {change or "images"}: {tuple(y.shape)}'
        if model.training or not name.startswith('harm') or change in ('huge', 'small'): return 'right'
        with torch.no_grad(): a, b = model.double()(x.double()), model(torch.rot90(x.double(), 1, (-2, -1)))
        moved = ((torch.rot90(a, 1, (-2, -1)) if maps else a) - b).abs().max()/a.abs().max()
        return ('right', '') if moved < 1e-9 else ('silent wrong', f'{told}: a quarter turn moves the answer by {moved:.1e}')
    how, what = outcome(go)
    return how, what if how != 'unclear' else f'{told}: {what}'


# --- files ---

def damaged(rng, b):
    "Bytes that somebody has truncated, flipped, overwritten, stretched or exchanged"
    b, n = bytearray(b), len(b)
    kind = rng.choice(['cut', 'flip', 'flip', 'flips', 'zeros', 'noise', 'insert', 'repeat', 'drop', 'digit'])
    i, k = rng.randrange(n), rng.randrange(1, 200)
    if kind == 'cut': return bytes(b[:i])
    if kind == 'flip': b[i] ^= 1 << rng.randrange(8)
    if kind == 'flips':
        for _ in range(k): b[rng.randrange(n)] ^= 1 << rng.randrange(8)
    if kind == 'zeros': b[i:i+k] = bytes(len(b[i:i+k]))
    if kind == 'noise': b[i:i+k] = rng.randbytes(len(b[i:i+k]))
    if kind == 'insert': b[i:i] = rng.randbytes(k)
    if kind == 'repeat': b[i:i] = b[i:i+k]
    if kind == 'drop': del b[i:i+k]
    if kind == 'digit' and (where := [j for j in range(min(n, 5000)) if chr(b[j]).isdigit()]): b[rng.choice(where)] = ord(rng.choice('0123456789'))
    return bytes(b)


@lru_cache(1)
def samples():
    "Good files of every kind, as bytes"
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        torch.manual_seed(0)
        save_model(create_model('harmformer_digits', num_classes=3, **{**BASE, 'img_size': 32}), d/'w.safetensors', vocab=['a', 'b', 'c'], mean=[10.], std=[20.])
        rgb = Image.fromarray(np.random.RandomState(0).randint(0, 256, (40, 50, 3), dtype=np.uint8))
        for f in ('a.png', 'a.jpg', 'a.gif', 'a.bmp', 'a.tif', 'a.webp'): rgb.save(d/f)
        Image.fromarray(np.random.RandomState(0).rand(30, 30).astype(np.float32)).save(d/'f.tif')
        (d/'config.json').write_text(json.dumps(dict(benchmark='digits', seed=0, recipe=dict(lr=.1, model='x'), title='t')))
        with h5py.File(d/'x.h5', 'w') as f: f['x'] = np.zeros((3, 96, 96, 3), np.uint8)
        return {p.name: p.read_bytes() for p in sorted(d.iterdir())}


def damage_file(rng):
    "Damage a file and read it: what is read is the same, or it is refused; pictures have no checksum, so any picture will do"
    name = rng.choice([*['w.safetensors']*6, *samples()])
    good = samples()[name]
    bad = damaged(rng, good)
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/name
        path.write_bytes(bad)
        def go():
            if name == 'w.safetensors':
                model = load_model(path)
                (Path(d)/'good.safetensors').write_bytes(good)
                same = load_model(Path(d)/'good.safetensors')
                a, b = model.state_dict(), same.state_dict()
                equal = model.config == same.config and model.provenance == same.provenance and all(torch.equal(a[k], b[k]) for k in b)
                return 'right' if equal else ('silent wrong', 'other weights')
            if name.endswith('.json'): return 'right' if isinstance(read_json(path), dict) else ('silent wrong', 'no dictionary')
            if name.endswith('.h5'): return 'right' if _h5(path, 'x', None, (96, 96, 3)).shape[1:] == (96, 96, 3) else ('silent wrong', 'other shape')
            return 'right' if read_pictures([path], 32).shape == (1, 3, 32, 32) else ('silent wrong', 'other shape')
        how, what = outcome(go)
        return how, f'{name}: {what}'
