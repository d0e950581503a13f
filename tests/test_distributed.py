"""Two processes that share every batch end with the weights of one: on CPUs, by the launcher and the command that GPUs would use."""
import json, os, signal, subprocess, sys, time
import pytest, torch
from harmformer.core import rel_error
from harmformer.system import read_tensors

# A tiny model for two epochs. `LOCAL` is the failing twin: each process with the statistics of its own share.
SCRIPT = '''
import os, sys, torch
from harmformer import magnitude
from harmformer.data import benchmark_dls
from harmformer.system import start_processes
from harmformer.train import fit, harmformer_learner
world = start_processes()
if os.environ.get('LOCAL'): magnitude._together = lambda: False
dls = benchmark_dls('digits', size=192, bs=32//world, val_bs=48, device='cpu')
torch.manual_seed(0)
learn = harmformer_learner(dls, 'harmformer_digits', channels=(2, 2), depth=1, head_dim=4, kernel_size=7, rings=2, dropout=0., norm=os.environ.get('NORM', 'fused'))
if os.environ.get('DOUBLE'):
    learn.model.double()
    for dl in dls.loaders: dl.after_batch = lambda b: (b[0].double(), b[1])
with learn.no_bar(), learn.no_logging(): fit(learn, 2, 1e-2, 'onecycle', sys.argv[1])
'''
COMMAND = '''
from harmformer import cli, core, report
core.PRESETS['harmformer_digits'].update(channels=(2, 2), depth=1, head_dim=4, kernel_size=7, rings=2)
report.ANGLES = (0, 90)
cli.harmformer_train()
'''


def launch(script, tmp_path, *args, processes=1, wait=True, **env):
    file = tmp_path/'script.py'
    file.write_text(script)
    torchrun = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', str(processes)] if processes > 1 else []
    p = subprocess.Popen([sys.executable, *torchrun, str(file), *map(str, args)], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONWARNINGS': 'ignore', **env}, start_new_session=True)
    if not wait: return p
    out = p.communicate(timeout=600)[0]
    assert p.returncode == 0, out
    return out


def weights(path): return {k: v for k, v in read_tensors(path/'checkpoint.safetensors')[1].items() if k.startswith('model/')}


def trained(tmp_path, **kw):
    "Checkpoint and log after training."
    path = tmp_path/'run'
    path.mkdir()
    launch(SCRIPT, tmp_path, path, **kw)
    return weights(path), [l.split(',') for l in (path/'log.csv').read_text().splitlines()[1:]]


def apart(a, b):
    "The largest relative difference between two sets of weights."
    assert set(a) == set(b)
    return max(rel_error(b[k].double(), a[k].double()).item() for k in a if a[k].is_floating_point() and a[k].any())


@pytest.fixture(scope='module')
def one(tmp_path_factory): return trained(tmp_path_factory.mktemp('one'))


def test_two_processes_end_with_the_weights_of_one(one, tmp_path):
    (alone, log), (together, log2) = one, trained(tmp_path, processes=2)
    assert apart(alone, together) < 1e-4          # 8.8e-6 when this was written
    for a, b in zip(log, log2):                                     # epoch, train_loss (of the first process), valid_loss, accuracy, turned
        assert float(b[2]) == pytest.approx(float(a[2]), rel=1e-4) and list(map(float, b[3:])) == pytest.approx(list(map(float, a[3:])))


def test_statistics_of_ones_own_share_end_elsewhere(one, tmp_path):
    local, _ = trained(tmp_path, processes=2, LOCAL='1')
    assert apart(one[0], local) > 1e-2


def test_the_norm_of_hnets_too(tmp_path_factory):
    "In double precision: this norm is so steep where a field is empty that rounding alone changes what is learned."
    alone, together = [trained(tmp_path_factory.mktemp('hnet'), NORM='hnet', DOUBLE='1', processes=n)[0] for n in (1, 2)]
    assert apart(alone, together) < 1e-6


@pytest.fixture(scope='module')
def commanded(tmp_path_factory):
    d = tmp_path_factory.mktemp('command')
    return d, launch(COMMAND, d, '--size', 192, '--epochs', 3, '--bs', 32, '--rival', 'none', processes=2)


def test_the_command_with_two_processes(commanded):
    d, out = commanded
    run, = (d/'runs').iterdir()                                     # one folder, chosen by the first process
    assert out.count('Training harmformer_digits') == 1 and '3 epochs of 6 steps' in out and out.count('Report:') == 1
    assert len((run/'log.csv').read_text().splitlines()) == 4 and (run/'report.html').exists()
    assert json.loads((run/'results.json').read_text())['rows'][0]['turned'] > 0


def test_interrupted_by_ctrl_c_and_resumed_is_the_same(commanded, tmp_path):
    args = '--size', 192, '--epochs', 3, '--bs', 32, '--rival', 'none'
    p = launch(COMMAND, tmp_path, *args, processes=2, wait=False)
    path = tmp_path/'runs'/'digits-harmformer_digits-seed0'
    for _ in range(6000):
        if (path/'log.csv').exists(): break
        time.sleep(.1)
    os.killpg(p.pid, signal.SIGINT)
    out = p.communicate(timeout=600)[0]
    assert p.returncode != 0 and out.count('Stopped and saved') == 1, out
    launch(COMMAND, tmp_path, *args, '--resume', processes=2)
    a, b = [weights(o/'runs'/path.name) for o in (commanded[0], tmp_path)]
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_batch_that_cannot_be_shared(tmp_path):
    p = launch(COMMAND, tmp_path, '--bs', 5, processes=2, wait=False)
    assert 'cannot be shared by 2 processes' in p.communicate(timeout=600)[0] and p.returncode != 0
