"""pyright, in its basic mode (pyrightconfig.json), has nothing against the package."""
import json, re, subprocess, sys
from pathlib import Path

import pytest

import run

ROOT = Path(__file__).parent.parent


def test_types(tmp_path):
    (bad := tmp_path/'bad.py').write_text('x: int = "one"\n')       # one run for both: it has to find this one
    r = subprocess.run([run.tool('pyright'), '--outputjson', '--pythonpath', sys.executable, ROOT/'harmformer', bad], cwd=ROOT,
                       capture_output=True, text=True)
    if not r.stdout.startswith('{'): pytest.skip(f'pyright does not start here, it needs node: {r.stderr[-200:]}')
    found = [f"{Path(o['file']).name}:{o['range']['start']['line'] + 1} {o['message']}" for o in json.loads(r.stdout)['generalDiagnostics']
             if o['severity'] == 'error']
    assert [o for o in found if not o.startswith('bad.py')] == [] and len(found) == 1


def test_few_exceptions():
    "A comment that silences pyright is the last resort"
    silent = [o for f in (ROOT/'harmformer').glob('*.py') for o in f.read_text().splitlines() if re.search('# (type|pyright): *ignore', o)]
    assert len(silent) <= 10, silent
