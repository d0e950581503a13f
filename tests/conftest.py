import json, shutil, subprocess, sys
from pathlib import Path

import pytest

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
