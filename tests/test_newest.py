"The library with the newest fastai and fastcore, which the notebooks' tools do not allow beside them."
import json, os, re, subprocess, sysconfig, venv
from pathlib import Path

import pytest

STEP = '''
import fastai, fastcore, json, torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from harmformer.conv import HConv2d

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.head = HConv2d(2, 2, in_orders=(0,)), torch.nn.Linear(6, 2)
    def forward(self, x):                       # (b, 2, h, w)
        z = self.lift(x)                        # (b, m, 2, h, w), complex
        return self.head(z.abs().mean((-2, -1)).flatten(1))

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(4, 2, 16, 16), torch.tensor([0, 1, 0, 1]))
loader = torch.utils.data.DataLoader(data, batch_size=4)
learn = Learner(DataLoaders(loader, loader), Net(), loss_func=torch.nn.functional.cross_entropy)
before = [p.clone() for p in learn.model.parameters()]
with learn.no_logging(): learn.fit(1, lr=0.1)
print(json.dumps(dict(learnt=[not torch.equal(a, b.cpu()) for a, b in zip(before, learn.model.parameters())],
                      libs={l.__name__: (l.__version__, l.__file__) for l in (fastai, fastcore)})))
'''


def test_a_training_step_with_the_newest_fastai(tmp_path, wheel):
    # A second environment that sees the first one behind its own packages, so that torch is not installed twice.
    venv.create(tmp_path/'venv', with_pip=True)
    python = tmp_path/'venv'/('Scripts/python.exe' if os.name == 'nt' else 'bin/python')

    def run(*args, may_fail=False):
        r = subprocess.run([python, *args], capture_output=True, text=True, cwd=tmp_path)
        assert may_fail or r.returncode == 0, r.stderr
        return r.stdout.strip()

    newest = {lib: re.search(r'\((.+?)\)', run('-m', 'pip', 'index', 'versions', lib, may_fail=True)) for lib in ('fastai', 'fastcore')}
    if not all(newest.values()):
        (pytest.fail if os.environ.get('CI') == 'true' else pytest.skip)('pip reaches no package index')
    site = run('-c', 'import sysconfig; print(sysconfig.get_path("purelib"))')
    Path(site, 'first.pth').write_text(sysconfig.get_path('purelib'))
    run('-m', 'pip', 'install', '-q', '-U', *newest)
    run('-m', 'pip', 'install', '-q', '--no-deps', wheel)

    for name in ('train', 'predict', 'segment'):  # the commands, whose arguments the newest fastcore reads differently
        r = subprocess.run([python.with_name(f'harmformer_{name}' + python.suffix), '--help'], capture_output=True, text=True, cwd=tmp_path)
        assert r.returncode == 0 and f'usage: harmformer_{name}' in r.stdout, r.stderr
    assert run('-c', "from harmformer.core import create_model; print(create_model('harmformer_mnist', pretrained='mnist-rot-test').provenance['title'])").endswith('mnist-rot-test')
    got = json.loads(run('-c', STEP).splitlines()[-1])
    assert len(got['learnt']) > 2 and all(got['learnt'])
    for lib, (version, file) in got['libs'].items(): assert version == newest[lib][1] and file.startswith(site)
