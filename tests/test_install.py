"The package as pip installs it."
import re
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope='module')
def contents(wheel):
    with ZipFile(wheel) as z:
        meta = Parser().parsestr(z.read(next(n for n in z.namelist() if n.endswith('/METADATA'))).decode())
        return set(z.namelist()), meta


def capped(requirements):
    "Those requirements that forbid newer versions."
    return [str(r) for r in map(Requirement, requirements) if any(s.operator not in ('>=', '>', '!=') for s in r.specifier)]


def test_every_module_is_inside(contents):
    names, _ = contents
    files = [p for pattern in ('*.py', 'weights/*.safetensors') for p in (ROOT/'harmformer').glob(pattern)]
    assert {p.relative_to(ROOT).as_posix() for p in files} <= names


def test_metadata(contents):
    _, meta = contents
    assert meta['Name'] == 'harmformer' and meta['Requires-Python'] == '>=3.10' and meta['License'] == 'Apache-2.0'
    version = re.search(r'"(.+)"', (ROOT/'harmformer'/'__init__.py').read_text())[1]
    assert meta['Version'] == version
    assert meta.get_payload().startswith('# ')  # the README


def test_requirements_are_open(contents):
    _, meta = contents
    library = [r for r in meta.get_all('Requires-Dist') if 'extra ==' not in r]
    assert 'torch' in library and capped(library) == []
    assert capped(['torch', 'a>=1', 'fastcore<2', 'nbdev==2.4.14']) == ['fastcore<2', 'nbdev==2.4.14']
