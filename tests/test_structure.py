"""Rules of the house that no notebook can check about itself.

Each rule is a function that lists what breaks it under `root`; each is also tried on an example that it must catch."""
import ast, json, re, subprocess
from pathlib import Path

import pytest

import run
from test_imports import imported

ROOT = Path(__file__).parent.parent


def notebooks(root, pattern='*'):
    "(path, cells) of each notebook, with the source of each cell as one string."
    for path in sorted(root.glob(f'nbs/{pattern}.ipynb')):
        if path.name[0] == '_': continue
        cells = json.loads(path.read_text(encoding='utf-8'))['cells']
        yield path, [{**c, 'source': ''.join(c['source'])} for c in cells]


def parsed(cell):
    "The statements of a code cell, without IPython's magics."
    if cell['cell_type'] != 'code': return []
    return ast.parse('\n'.join(l for l in cell['source'].splitlines() if not l.lstrip().startswith(('%', '!')))).body


def imports_from_above(root):
    home = {m[1]: path.stem for path, cells in notebooks(root, '[0-9]*') for c in cells
            if (m := re.match(r'#\|\s*default_exp\s+(\w+)', c['source']))}
    return [f'{path.stem} imports {m} from {home[m]}' for path, cells in notebooks(root, '[0-9]*') for c in cells
            for top in parsed(c) for m in imported(top, home) if home[m] > path.stem]


def imports_beside_code(root):
    "nbdev's docs step runs a cell with an import, and without the cells before it the rest would fail."
    is_import = lambda n: isinstance(n, (ast.Import, ast.ImportFrom))
    return [f"{path.stem}: {c['source'][:60]!r}" for path, cells in notebooks(root) for c in cells
            if '#| export' not in c['source'] and 'nbdev_export()' not in c['source']
            if len({is_import(n) for n in parsed(c)}) > 1]


def untitled(root):
    "nbdev takes title and description from the first cell, and drops whatever else stands in that cell."
    return [path.stem for path, cells in notebooks(root)
            if not any(c['cell_type'] == 'markdown' and re.fullmatch(r'# [^\n]+\n+> [^\n\\]+\n*', c['source']) for c in cells[:2])]


def without_outputs(root):
    code = lambda cells: [c for c in cells if c['cell_type'] == 'code' and c['source'].strip()]
    return [path.stem for path, cells in notebooks(root) if code(cells) and not any(c['outputs'] for c in code(cells))]


def tracebacks(root):
    text = lambda o: ''.join(o.get('text', '')) + ''.join(o.get('data', {}).get('text/plain', ''))
    return [f"{path.stem}: {c['source'][:60]!r}" for path, cells in notebooks(root) for c in cells for o in c.get('outputs', [])
            if o['output_type'] == 'error' or 'Traceback (most recent call last)' in text(o)]


def warnings_shown(root):
    return [f"{path.stem}: {''.join(o['text'])[:60]!r}" for path, cells in notebooks(root) for c in cells for o in c.get('outputs', [])
            if o.get('name') == 'stderr']


def pictures_without_words(root):
    "Cells that show a picture and do not say in words what is to be seen: Quarto makes the alt text of `#| fig-alt: \"...\"`."
    return [f"{path.stem}: {c['source'][:60]!r}" for path, cells in notebooks(root) for c in cells
            if any('image/png' in o.get('data', {}) for o in c.get('outputs', []))
            if not re.match(r'#\| fig-alt: "[^"\\\n]{10,}"\n', c['source'])]


def values_beside_pictures(root):
    "Cells that end in a value and show a picture too: one idea per cell, and Quarto leaves out such a value if it stands in brackets."
    return [f"{path.stem}: {c['source'][:60]!r}" for path, cells in notebooks(root) for c in cells
            if len({'image/png' in o.get('data', {}) for o in c.get('outputs', [])}) > 1]


def readme_differs(root):
    nb = json.loads((root/'nbs'/'index.ipynb').read_text(encoding='utf-8'))
    same = run.render_readme(nb) == (root/'README.md').read_text(encoding='utf-8')
    return [] if same else ['README.md is not what python3 run.py readme writes']


def not_in_reading_map(root):
    "Notebooks that the README does not link, and links to notebooks that do not exist."
    linked = set(re.findall(r'\(nbs/(\w+)\.ipynb\)', (root/'README.md').read_text(encoding='utf-8')))
    return sorted(linked ^ {path.stem for path, _ in notebooks(root) if path.stem != 'index'})


def not_in_sidebar(root):
    "Notebooks without a line in sidebar.yml, lines without a notebook, and lines that do not begin with the notebook's number."
    lines = re.findall(r'text: ([^,}]+), href: (\w+\.ipynb)', (root/'nbs'/'sidebar.yml').read_text(encoding='utf-8'))
    names = {path.name for path, _ in notebooks(root)}
    return sorted(names ^ {href for _, href in lines}) + [text for text, href in lines if href[:2].isdigit() and text[:2] != href[:2]]


def machine_names(root):
    "Committed files that name a folder of somebody's machine or the host of a package registry."
    pattern = re.compile(rb'/(root|work|home/\w+|Users/\w+|tmp/\w+)/|(pypi|pythonhosted|npmjs|debian)\.org')
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=root, capture_output=True, text=True)
    files = [root/f for f in listed.stdout.split('\0') if f] if listed.returncode == 0 else root.rglob('*')
    return [f'{p.name}: {m[0].decode()}' for p in files if p.is_file() for m in pattern.finditer(p.read_bytes())]


RULES = [imports_from_above, imports_beside_code, untitled, without_outputs, tracebacks, warnings_shown, pictures_without_words, values_beside_pictures,
         readme_differs, not_in_reading_map, not_in_sidebar, machine_names]


@pytest.mark.parametrize('rule', RULES, ids=lambda f: f.__name__)
def test_rule(rule): assert rule(ROOT) == []


@pytest.mark.parametrize('statement', ['from harmformer.core import *', 'import harmformer.core as hc', 'from harmformer import core',
                                       'def f():\n    from harmformer.core import Harmformer'])
def test_import_from_above_is_caught(tmp_path, make_nb, statement):
    make_nb('02_conv', '#| default_exp conv', '%matplotlib inline\nimport torch', statement)
    make_nb('11_core', '#| default_exp core', 'from harmformer.conv import HConv2d')
    assert imports_from_above(tmp_path) == ['02_conv imports core from 11_core']


def test_import_beside_code_is_caught(tmp_path, make_nb):
    make_nb('00_good', 'import torch\nfrom math import pi', 'x = 1')
    make_nb('01_bad', 'import torch\nx = torch.ones(y)')
    assert len(imports_beside_code(tmp_path)) == 1


@pytest.mark.parametrize('title', ['Title', '# Title', '# Title\n\n> Sub\n\nProse that the site would lose.', '# Title\n\n> With $\\alpha$'])
def test_bad_title_is_caught(tmp_path, make_nb, title):
    make_nb('00_good')
    make_nb('01_bad', title=title)
    assert untitled(tmp_path) == ['01_bad']


def test_missing_outputs_are_caught(tmp_path, make_nb):
    make_nb('00_bad', 'x = 1', output=None)
    make_nb('01_good', 'x = 1')
    assert without_outputs(tmp_path) == ['00_bad']


def test_traceback_is_caught(tmp_path, make_nb):
    make_nb('00_printed', '1/0', output='Traceback (most recent call last):\n ZeroDivisionError')
    raised = make_nb('01_raised', '1/0', output='x')
    raised.write_text(raised.read_text().replace('"stream", "name": "stdout"', '"error", "ename": "E"'))
    assert len(tracebacks(tmp_path)) == 2


def test_warning_is_caught(tmp_path, make_nb):
    path = make_nb('00_a', 'import torch')
    assert warnings_shown(tmp_path) == []
    path.write_text(path.read_text().replace('"stdout"', '"stderr"'))
    assert len(warnings_shown(tmp_path)) == 1


def test_picture_without_words_is_caught(tmp_path, make_nb):
    code = ('#| fig-alt: "A line that rises"\nplt.plot(x)', '#| fig-alt: "?"\nplt.plot(x)', 'plt.plot(x)')
    path = make_nb('00_a', *code)
    path.write_text(path.read_text().replace('"name": "stdout", "text": "1"', '"data": {"image/png": "x"}'))
    assert len(pictures_without_words(tmp_path)) == 2


def test_value_beside_picture_is_caught(tmp_path, make_nb):
    path = make_nb('00_a', 'plot()', '1', 'plot()\n1')
    nb = json.loads(path.read_text())
    for cell, kinds in zip(nb['cells'][1:], (['image/png'], ['text/plain'], ['image/png', 'text/plain'])):
        cell['outputs'] = [dict(output_type='display_data', metadata={}, data={k: 'x'}) for k in kinds]
    path.write_text(json.dumps(nb))
    assert len(values_beside_pictures(tmp_path)) == 1


def test_other_readme_is_caught(tmp_path, make_nb):
    make_nb('index', 'print(1)')
    good = '# Title\n\n> Subtitle\n\n```python\nprint(1)\n```\n\n```\n1\n```\n'
    (tmp_path/'README.md').write_text(good)
    assert readme_differs(tmp_path) == []
    (tmp_path/'README.md').write_text(good + 'by hand')
    assert readme_differs(tmp_path) != []


def test_missing_in_maps_is_caught(tmp_path, make_nb):
    make_nb('00_fields')
    (tmp_path/'README.md').write_text('[one](nbs/01_gone.ipynb)')
    make_nb('02_conv')
    (tmp_path/'nbs'/'sidebar.yml').write_text('- {text: 01 Gone, href: 01_gone.ipynb}\n- {text: Convolution, href: 02_conv.ipynb}')
    assert not_in_reading_map(tmp_path) == ['00_fields', '01_gone', '02_conv']
    assert not_in_sidebar(tmp_path) == ['00_fields.ipynb', '01_gone.ipynb', 'Convolution']


@pytest.mark.parametrize('parts', [('', 'root', 'x'), ('see ', 'home', 'ann', 'data'), ('', 'tmp', 'w', 'a'), ('https:', '', 'pypi' + '.org', 'x')])
def test_machine_name_is_caught(tmp_path, parts):
    (tmp_path/'a.md').write_text('/'.join(parts))
    assert len(machine_names(tmp_path)) == 1


def test_edited_orphaned_and_unclean_are_caught(tmp_path, make_nb):
    (tmp_path/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    (tmp_path/'harmformer').mkdir()
    nb = make_nb('00_a', '#| default_exp a', '#| export\ndef f(): return 1')
    assert run.run('nbdev_export', cwd=tmp_path) == run.run('nbdev_clean', cwd=tmp_path) == 0
    assert run.changed_by_nbdev(tmp_path) == []
    module = tmp_path/'harmformer'/'a.py'
    module.write_text(module.read_text().replace('return 1', 'return 2'))
    (tmp_path/'harmformer'/'gone.py').write_text('# AUTOGENERATED! DO NOT EDIT!\n')
    nb.write_text(nb.read_text().replace('"metadata": {}', '"metadata": {"tags": ["x"]}', 1))
    assert run.changed_by_nbdev(tmp_path) == ['harmformer/a.py', 'harmformer/gone.py', 'nbs/00_a.ipynb']
    assert 'return 2' in module.read_text()  # it looked only
