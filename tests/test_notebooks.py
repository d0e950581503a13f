"Each notebook, top to bottom in a fresh process, by nbdev_test: which has no time limit and prints no counts itself."
import shutil, subprocess, sys
from pathlib import Path

import pytest

import run

ROOT = Path(__file__).parent.parent
MINUTES = 5


def nbdev_test(notebook, minutes=MINUTES, cwd=ROOT):
    "What nbdev_test has against `notebook`: '' if it passes."
    try: r = subprocess.run([run.tool('nbdev_test'), '--path', str(notebook)], cwd=cwd, capture_output=True, text=True, timeout=60*minutes)
    except subprocess.TimeoutExpired: return f'{notebook.name} did not end within {minutes} minutes'
    return '' if r.returncode == 0 else f'{notebook.name} failed\n{r.stdout}{r.stderr}'


@pytest.mark.parametrize('notebook', sorted(ROOT.glob('nbs/[!_]*.ipynb')), ids=lambda p: p.stem)
def test_notebook(notebook):
    if problem := nbdev_test(notebook): pytest.fail(problem, pytrace=False)


def test_failing_notebooks_are_caught(tmp_path, make_nb):
    shutil.copy(ROOT/'settings.ini', tmp_path)
    bad, slow = make_nb('90_bad', 'assert 1 == 2'), make_nb('91_slow', 'import time', 'time.sleep(60)')
    assert 'AssertionError' in nbdev_test(bad, cwd=tmp_path)
    assert 'did not end' in nbdev_test(slow, minutes=0.2, cwd=tmp_path)


def docs_step(root, tmp):
    "What nbdev's preparation of the site has against the notebooks of `root`: '' if all pass. Needs no Quarto, works in `tmp`."
    shutil.copy(root/'settings.ini', tmp)
    for d in ('nbs', 'harmformer'): shutil.copytree(root/d, tmp/d, symlinks=True, ignore=shutil.ignore_patterns('.*', '__pycache__'))
    r = subprocess.run([sys.executable, '-c', 'from nbdev.serve import proc_nbs; proc_nbs(n_workers=0)'], cwd=tmp, capture_output=True, text=True)
    made = {p.name for p in tmp.glob('_proc/*.ipynb')}
    return '' if r.returncode == 0 and made >= {p.name for p in root.glob('nbs/[!_]*.ipynb')} else f'made only {made}\n{r.stderr}'


def test_docs_step(tmp_path):
    if problem := docs_step(ROOT, tmp_path): pytest.fail(problem, pytrace=False)


def test_failing_docs_step_is_caught(tmp_path, tmp_path_factory, make_nb):
    shutil.copy(ROOT/'settings.ini', tmp_path)
    (tmp_path/'harmformer').mkdir()
    make_nb('00_a', 'x = 1', '#| export\ndef f(a=x): return a')  # the site's step runs the exported cell without the one before
    assert "name 'x' is not defined" in docs_step(tmp_path, tmp_path_factory.mktemp('site'))
