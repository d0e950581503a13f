import json, shutil, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import run

ROOT = Path(__file__).parent.parent
run.BIN = Path(sys.executable).parent  # the tools of the environment that runs the tests


@pytest.fixture(scope='session')
def wheel(tmp_path_factory):
    "The package as a wheel, built from a copy so that no build files land in the tree."
    src, out = tmp_path_factory.mktemp('src'), tmp_path_factory.mktemp('wheel')
    for f in ('settings.ini', 'setup.py', 'README.md', 'LICENSE'): shutil.copy(ROOT/f, src)
    shutil.copytree(ROOT/'harmformer', src/'harmformer', ignore=shutil.ignore_patterns('__pycache__'))
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', src, '-q', '--no-deps', '--no-build-isolation', '-w', out], check=True)
    return next(out.glob('harmformer-*.whl'))


@pytest.fixture
def make_nb(tmp_path):
    "A function that writes a notebook of code cells below a title to tmp_path/nbs, and returns its path."
    def make(name, *code, title='# Title\n\n> Subtitle', output='1'):
        out = [dict(output_type='stream', name='stdout', text=output)] if output else []
        cells = [dict(cell_type='markdown', id='t', metadata={}, source=title)]
        cells += [dict(cell_type='code', id=f'c{i}', metadata={}, execution_count=None, outputs=out, source=c) for i, c in enumerate(code)]
        path = tmp_path/'nbs'/f'{name}.ipynb'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
        return path
    return make


def write_drive(folder, part, numbers, size=(130, 120), rng=np.random.RandomState(0)):
    "Photographs of noise with masks, named as in DRIVE, below `folder`."
    path, word = Path(folder)/'DRIVE'/part, 'training' if part == 'training' else 'test'
    for d in ('images', '1st_manual', 'mask'): (path/d).mkdir(parents=True, exist_ok=True)
    def noise(*shape): return rng.randint(0, 256, (size[1], size[0], *shape), dtype=np.uint8)
    for i in numbers:
        Image.fromarray(noise(3)).save(path/'images'/f'{i:02}_{word}.tif')
        Image.fromarray((noise() > 200)*np.uint8(255)).save(path/'1st_manual'/f'{i:02}_manual1.gif')
        Image.fromarray(np.full((size[1], size[0]), 255, np.uint8)).save(path/'mask'/f'{i:02}_{word}_mask.gif')
    return path
