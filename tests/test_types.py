"""pyright, in its basic mode (pyrightconfig.json), has nothing against these modules; those of the lemma notebooks are not there yet."""
import json, subprocess, sys
from pathlib import Path

import pytest

import run

ROOT = Path(__file__).parent.parent
CLEAN = ('constants checkpoint checks cli core data docs evaluate figures files hub patches predict report runs segment system train').split()


def test_types(tmp_path):
    (bad := tmp_path/'bad.py').write_text('x: int = "one"\n')       # one run for both: it has to find this one
    files = [ROOT/'harmformer'/f'{name}.py' for name in CLEAN]
    r = subprocess.run([run.tool('pyright'), '--outputjson', '--pythonpath', sys.executable, *files, bad], cwd=ROOT, capture_output=True, text=True)
    if not r.stdout.startswith('{'): pytest.skip(f'pyright does not start here, it needs node: {r.stderr[-200:]}')
    found = [f"{Path(o['file']).name}:{o['range']['start']['line'] + 1} {o['message']}" for o in json.loads(r.stdout)['generalDiagnostics']
             if o['severity'] == 'error']
    assert [o for o in found if not o.startswith('bad.py')] == [] and len(found) == 1
