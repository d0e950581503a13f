"""Each notebook once, top to bottom, in the kernel that JupyterLab starts: its assertions hold, it writes nothing to stderr and it shows what is
stored, numbers included. nbdev_test runs the same cells and looks at the assertions only, so here it runs one short notebook of each kind; the
hosted workflow runs it on all of them, beside this suite."""
import re, shutil, subprocess, sys
from configparser import ConfigParser
from pathlib import Path

import matplotlib.font_manager  # finds its folder and its fonts now: a kernel would write to stderr that it does
import nbformat, pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

import run

ROOT = Path(__file__).parent.parent
NOTEBOOKS = pytest.mark.parametrize('notebook', sorted(ROOT.glob('nbs/[!_]*.ipynb')), ids=lambda p: p.stem)
MINUTES = 5


def nbdev_test(notebook, minutes=MINUTES, cwd=ROOT):
    "What nbdev_test, which has no time limit, has against `notebook`: '' if it passes."
    try: r = subprocess.run([run.tool('nbdev_test'), '--path', str(notebook)], cwd=cwd, capture_output=True, text=True, timeout=60*minutes)
    except subprocess.TimeoutExpired: return f'{notebook.name} did not end within {minutes} minutes'
    return '' if r.returncode == 0 else f'{notebook.name} failed\n{r.stdout}{r.stderr}'


@pytest.mark.parametrize('name', ['07_encoder', '17_orientation', '20_mnist_rot_test', '32_new_layer', 'index'])
def test_by_nbdev_test(name):
    if problem := nbdev_test(ROOT/'nbs'/f'{name}.ipynb'): pytest.fail(problem, pytrace=False)


def test_failing_notebooks_are_caught(tmp_path, make_nb):
    shutil.copy(ROOT/'settings.ini', tmp_path)
    bad, slow = make_nb('90_bad', 'assert 1 == 2'), make_nb('91_slow', 'import time', 'time.sleep(60)')
    assert 'AssertionError' in nbdev_test(bad, cwd=tmp_path)
    assert 'did not end' in nbdev_test(slow, minutes=0.2, cwd=tmp_path)


def shown(cell):
    "What a reader sees below the cell: printed text, a picture, a table, prose, a value, each once."
    kinds = ('image/png', 'text/html', 'text/markdown', 'text/plain')  # a frontend shows the first of them that it gets
    return {'printed' if o.output_type == 'stream' else next(k for k in kinds if k in o.data) for o in cell.get('outputs', [])}


NUMBER = re.compile(r'(?<![\w.])[-+−]?\d+(?:[,_]\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?|(?<![\w.])\.\d+')
CHANGES = ('HARMFORMER_DATA', 'timeit', 'perf_counter', 'repeat(')  # what such a cell shows depends on the machine


def said(cell):
    "The text below a cell: what is printed, and values as plain text."
    parts = [o.text if o.output_type == 'stream' else o.data.get('text/plain', '') for o in cell.get('outputs', []) if o.get('name') != 'stderr']
    return '' if any(o in cell.source for o in CHANGES) else ' '.join(' '.join(map(''.join, parts)).split())


def differs(old, new, rel=.25, near=5e-3):
    "Where two texts say different things: other words, or numbers that are further apart than another machine's rounding and training explain."
    words = [NUMBER.sub('#', o).replace(' ', '') for o in (old, new)]
    if words[0] != words[1]: return f'stored is {old[:300]!r}, now it says {new[:300]!r}'
    pairs = [[float(re.sub('[,_]', '', o).replace('−', '-')) for o in NUMBER.findall(t)] for t in (old, new)]
    far = [(a, b) for a, b in zip(*pairs) if abs(a - b) > near + rel*max(abs(a), abs(b))]
    return f'stored is {far[0][0]}, now it is {far[0][1]}' if far else ''


def in_jupyter(notebook, minutes=MINUTES):
    "What a reader who runs all of `notebook` in JupyterLab has against it: '' if nothing. Cells with a flag of settings.ini are left out."
    settings = ConfigParser()
    settings.read(ROOT/'settings.ini')
    flags = tuple(f'#| {o}' for o in settings['DEFAULT']['tst_flags'].split())
    nb = nbformat.read(notebook, 4)
    nb.cells = [c for c in nb.cells if c.cell_type == 'code' and not c.source.startswith(flags)]
    stored = [(shown(c), said(c)) for c in nb.cells]
    try: NotebookClient(nb, timeout=60*minutes, kernel_name='python3', resources=dict(metadata=dict(path=notebook.parent))).execute()
    except (CellExecutionError, CellTimeoutError) as e: return f'{notebook.name} failed\n{e}'
    found = []
    for c, (old, text) in zip(nb.cells, stored):
        errors = ''.join(o.text for o in c.outputs if o.get('name') == 'stderr')
        if errors: found.append(f'{c.source}\nwrites to stderr: {errors}')
        if shown(c) != old: found.append(f'{c.source}\nshows {shown(c) or "nothing"}, stored is {old or "nothing"}')
        elif problem := differs(text, said(c)): found.append(f'{c.source}\n{problem}')
    return '\n\n'.join(found)


@NOTEBOOKS
def test_in_jupyter(notebook):
    if problem := in_jupyter(notebook): pytest.fail(problem, pytrace=False)


def test_what_jupyter_catches(make_nb):
    assert 'AssertionError' in in_jupyter(make_nb('90_bad', 'assert 1 == 2'))
    assert 'timed out' in in_jupyter(make_nb('91_slow', 'import time; time.sleep(60)'), minutes=0.05)
    assert 'stderr: oh' in in_jupyter(make_nb('92_warns', 'import sys; print("oh", file=sys.stderr)'))
    assert "shows nothing, stored is {'printed'}" in in_jupyter(make_nb('93_old', 'x = 1'))
    assert "shows {'image/png'}" in in_jupyter(make_nb('94_new', 'import matplotlib.pyplot as plt\nplt.plot([1]);'))
    assert 'stored is 1.0, now it is 2.0' in in_jupyter(make_nb('95_stale', 'print(2)'))
    assert "now it says 'one'" in in_jupyter(make_nb('96_other', 'print("one")'))
    assert not in_jupyter(make_nb('97_good', 'print(1)', '#| slow\nassert 1 == 2'))


@pytest.mark.parametrize('old, new, same', [('1e-16', '3e-15', True), ('0.93', '0.95', True), ('0.93', '0.31', False), ('a 12,000', 'a 12,100', True), ('a 12,000', 'a 120', False), ('a', 'b', False),
                                            ('[1, 2]', '[1, 2, 3]', False), ('−3.5', '3.5', False), ('.5', '0.5', True)])
def test_what_differs(old, new, same): assert (differs(old, new) == '') == same


def docs_step(root, tmp):
    "What nbdev's preparation of the site has against the notebooks of `root`: '' if all pass. Needs no Quarto, works in `tmp`."
    shutil.copy(root/'settings.ini', tmp)
    for d in ('nbs', 'harmformer'): shutil.copytree(root/d, tmp/d, symlinks=True, ignore=shutil.ignore_patterns('.*', '__pycache__'))
    r = subprocess.run([sys.executable, '-c', 'from nbdev.serve import proc_nbs; proc_nbs(n_workers=0)'], cwd=tmp, capture_output=True, text=True)
    made = {p.name for p in tmp.glob('_proc/*.ipynb')}
    return '' if r.returncode == 0 and made >= {p.name for p in root.glob('nbs/[!_]*.ipynb')} else f'made only {made}\n{r.stderr}'


def odd_signatures(folder):
    "Lines of the API pages below `folder` where a link or an address in memory stands in the middle of code."
    outputs = [o for p in folder.glob('*.ipynb') for c in nbformat.read(p, 4).cells for o in c.get('outputs', [])]
    code = [b for o in outputs for b in re.findall(r'```python\n(.*?)```', o.get('data', {}).get('text/markdown', ''), re.S)]
    return [l for b in code for l in b.splitlines() if re.search(r'\]\(http|object at 0x', l)]


def test_docs_step(tmp_path):
    if problem := docs_step(ROOT, tmp_path): pytest.fail(problem, pytrace=False)
    assert odd_signatures(tmp_path/'_proc') == []


def test_failing_docs_step_is_caught(tmp_path, tmp_path_factory, make_nb):
    shutil.copy(ROOT/'settings.ini', tmp_path)
    (tmp_path/'harmformer').mkdir()
    make_nb('00_a', 'x = 1', '#| export\ndef f(a=x): return a')  # the site's step runs the exported cell without the one before
    assert "name 'x' is not defined" in docs_step(tmp_path, tmp_path_factory.mktemp('site'))


def test_odd_signature_is_caught(tmp_path, make_nb):
    path = make_nb('00_a', 'show_doc(f)')
    nb = nbformat.read(path, 4)
    page = '```python\ndef f(\n    a, # see [`g`](https://x)\n):\n```\n\nSee [`g`](https://x)'
    nb.cells[1].outputs = [nbformat.v4.new_output('display_data', {'text/markdown': page})]
    nbformat.write(nb, path)
    assert odd_signatures(path.parent) == ['    a, # see [`g`](https://x)']
