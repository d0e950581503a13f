"""Makes what the page in the browser (nbs/demo) shows, from the weights of the package: python3 tools/make_demo.py

The networks as ONNX files, the example pictures and the figures on the page (demo.json). With --train it also trains the two plain
CNNs again: on the upright digits that the Harmformer of the page learned from, and on the same digits at random angles. That takes
about ten minutes on one core. All of it is committed; tests/test_demo.py compares it with the weights."""
import argparse, base64, json
from pathlib import Path

import numpy as np, onnxruntime, torch
from fastai.callback.progress import ProgressCallback
from PIL import Image, ImageDraw, ImageFilter

from harmformer.core import count_params, create_model, load_model, pixel_grid, rotate_image
from harmformer.data import ImageSet, benchmark_dls
from harmformer.export import export_onnx
from harmformer.system import random_stream
from harmformer.train import fit, harmformer_learner, recipe

ROOT = Path(__file__).resolve().parent.parent
DEMO, RUNTIME = ROOT/'nbs'/'demo', {'ort/ort-wasm-simd-threaded.wasm': 14_239_897}  # of onnxruntime-web 1.30.0
RETINA = 96  # pixels: small enough for several answers a second in a browser
EPOCHS = {'cnn.onnx': 16, 'cnn-rotated.onnx': 48}  # the recipe's; more where there is more to learn


class Rotated(ImageSet):
    "Images that come at a new random angle each time."
    def batch(self, idxs, key=None):
        x, y = super().batch(idxs)
        return rotate_image(x, random_stream('demo', *(key or ()), *map(int, idxs)).uniform(0, 360, len(x))), y


def train_cnn(file):
    "A plain CNN, trained on the digits of the package as its recipe says; at random angles for cnn-rotated.onnx."
    torch.manual_seed(0)
    how = recipe('digits', model='cnn', epochs=EPOCHS[file])
    dls = benchmark_dls('digits', bs=how['bs'], device='cpu')
    if file == 'cnn-rotated.onnx': dls.train.dataset.__class__ = Rotated
    learn = harmformer_learner(dls, 'cnn', lr=how['lr'], wd=how['wd'], label_smoothing=how['label_smoothing'])
    learn.remove_cb(ProgressCallback)
    fit(learn, how['epochs'], how['lr'], how['schedule'])
    return learn.model.eval()


def answers(file, x):
    "Logits of an ONNX file for images (b, c, h, w), a hundred at a time."
    session = onnxruntime.InferenceSession(str(file))
    return torch.cat([torch.from_numpy(session.run(['logits'], {'images': o.numpy()})[0]) for o in x.split(100)])


def accuracies(file):
    "Shares of the 1,000 test digits that a network reads right: upright, and each at its own angle."
    dls = benchmark_dls('digits', device='cpu')
    sets = [dl.dataset.batch(range(len(dl.dataset))) for dl in (dls.upright, dls.test)]
    return [(answers(file, x).argmax(1) == y).float().mean().item() for x, y in sets]


def drawn_retinas():
    "Three retinas, (3, 3, n, n) in uint8, drawn by the code of nbs/24_drive.ipynb."
    cells = [''.join(c['source']) for c in json.loads((ROOT/'nbs'/'24_drive.ipynb').read_text(encoding='utf-8'))['cells']]
    place = dict(np=np, torch=torch, pixel_grid=pixel_grid, Image=Image, ImageDraw=ImageDraw, ImageFilter=ImageFilter)
    for code in cells:
        if code.startswith(('def draw_vessels', 'def draw_retina')): exec(code, place)
    return torch.stack([(place['draw_retina'](seed, RETINA)['image']*255).round().byte() for seed in (2, 0, 1)])


def example_digits():
    "The test digit of each class that is closest to the mean of its class: (10, 1, 32, 32) in uint8."
    test = benchmark_dls('digits', device='cpu').upright.dataset
    def usual(c):
        x = test.x[test.y == c].float()
        return test.x[test.y == c][(x - x.mean(0)).square().sum((1, 2, 3)).argmin()]
    return torch.stack([usual(c) for c in range(10)])


def packed(x, **more):
    "Pictures (n, c, h, h) in uint8 as demo.json has them."
    return dict(size=x.shape[-1], channels=x.shape[1], **more, pixels=base64.b64encode(x.numpy().tobytes()).decode())


def make(train, out=DEMO):
    for file in EPOCHS:
        if train or not (out/file).exists(): export_onnx(train_cnn(file), out/file)
    export_onnx(load_model('digits'), out/'digits.onnx', outputs=('logits', 'fields', 'attention'))
    export_onnx(load_model('drive'), out/'vessels.onnx', RETINA)
    export_onnx(load_model('drive-unet'), out/'vessels-plain.onnx', RETINA)
    about(out)


def about(out=DEMO):
    "Write demo.json: files with their sizes, networks, example pictures, and sentences with their figures."
    cnn = count_params(create_model('cnn'))
    digits = [dict(file='digits.onnx', name='Harmformer', colour='ours', how='trained on upright digits', params=count_params(load_model('digits'))),
              dict(file='cnn.onnx', name='Plain CNN', colour='plain', how='trained on upright digits', params=cnn),
              dict(file='cnn-rotated.onnx', name='Second CNN', colour='other', how='trained on rotated digits', params=cnn)]
    for net in digits: net['upright'], net['rotated'] = accuracies(out/net['file'])
    vessels = [dict(file='vessels.onnx', name='Harmformer U-Net', colour='ours'), dict(file='vessels-plain.onnx', name='Plain U-Net', colour='plain')]
    for net, weights in zip(vessels, ('drive', 'drive-unet')):
        model = load_model(weights)
        net.update(params=count_params(model), auc=model.provenance['auc'])
    said = ', '.join(f"{n['name']} {n['upright']:.1%} and {n['rotated']:.1%}" for n in digits)
    sizes = {f: (out/f).stat().st_size for f in [n['file'] for n in digits + vessels]}
    texts = dict(
        digits=f'Accuracy on 1,000 test digits, upright and rotated: {said}. The Harmformer has {digits[0]["params"]:,} parameters, a CNN {cnn:,}. '
               'Training on rotated digits helps a CNN, but only a network that is equivariant by construction gives the same answer at 0°, '
               '90°, 180° and 270° to rounding; in between, pixels limit it too. There is a price: an upside-down 6 looks much like a 9.',
        vessels=f'The retinas are drawn by us. Both networks learned from photographs (DRIVE): areas under the ROC curve of {vessels[0]["auc"]:.3f} and '
                f'{vessels[1]["auc"]:.3f}, with {vessels[0]["params"]:,} and {vessels[1]["params"]:,} parameters. Both find vessels in all directions. '
                'What the plain one cannot promise is that its map rotates with the retina.')
    facts = dict(files={**RUNTIME, **sizes}, nets=dict(digits=digits, vessels=vessels), texts=texts,
                 pictures=dict(digits=packed(example_digits(), labels=list(range(10)), first=4), vessels=packed(drawn_retinas())))
    (out/'demo.json').write_text(json.dumps(facts, indent=1, ensure_ascii=False) + '\n', encoding='utf-8', newline='\n')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--train', action='store_true', help='train the plain CNNs again')
    make(parser.parse_args().train)
