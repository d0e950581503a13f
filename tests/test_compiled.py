"""Compiled training steps: the same bits twice and after a kill, and a line instead of an error where they cannot be had."""
import pytest, torch
from fastai.callback.core import Callback
from harmformer import compiled
from harmformer.cli import harmformer_train
from harmformer.compiled import EARNED_BACK, pays
from harmformer.core import create_model
from harmformer.data import benchmark_dls
from harmformer.system import read_tensors
from harmformer.train import fit, harmformer_learner

TINY = dict(channels=(2, 2), depth=0, kernel_size=5, rings=1)


class StopAt(Callback):
    "As Ctrl-C after so many batches"
    order = 99
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.training and self.train_iter == self.n: self.learn.checkpoint.stop = True


class Forwards(Callback):
    "Whose `forward` ran in training, and whose in validation"
    order = 99
    def before_fit(self): self.own = {True: set(), False: set()}
    def after_pred(self): self.own[self.training].add('forward' not in vars(self.learn.model))


@pytest.fixture(scope='module')
def dls(): return benchmark_dls('digits', size=16, valid=8, bs=4, device='cpu')


def run(dls, path, compile=True, stop=None, resume=False, **kw):
    path.mkdir(exist_ok=True)
    torch.manual_seed(0)
    learn = harmformer_learner(dls, 'harmformer_digits', compile=compile, cbs=[Forwards(), *([StopAt(stop)] if stop else [])], **{**TINY, **kw})
    with learn.no_bar(), learn.no_logging(): fit(learn, 2, 1e-2, path=path, resume=resume)
    weights = {k: v for k, v in read_tensors(path/'checkpoint.safetensors')[1].items() if k.startswith('model/')}
    return learn, weights


def same(a, b): return all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def quick(monkeypatch):
    "The whole way but for the C++ compiler"
    make = torch.compile
    monkeypatch.setattr(compiled, '_no_compiler', lambda: None)
    monkeypatch.setattr(compiled.torch, 'compile', lambda f, **kw: make(f, backend='aot_eager', **kw))
    torch._dynamo.reset()


def test_same_bits_twice_and_after_a_stop(dls, tmp_path, quick, capsys):
    kw = dict(depth=1, head_dim=4, dropout=.1, stem_dropout=.1)
    (learn, a), (_, b) = run(dls, tmp_path/'a', **kw), run(dls, tmp_path/'b', **kw)
    half, _ = run(dls, tmp_path/'c', stop=6, **kw)
    _, c = run(dls, tmp_path/'c', resume=True, **kw)
    assert half.stopped and same(a, b) and same(a, c)
    assert learn.forwards.own == {True: {False}, False: {True}}     # validation is not compiled
    assert 'forward' not in vars(learn.model) and learn.step is None
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and all('8 steps' in o for o in said)


def test_by_the_compiler_too(dls, tmp_path, capsys):
    if compiled._no_compiler(): pytest.skip('no C++ compiler')
    torch._dynamo.reset()
    (_, a), (_, b), (_, c) = run(dls, tmp_path/'a'), run(dls, tmp_path/'b'), run(dls, tmp_path/'c', False)
    assert 'not compiled' not in capsys.readouterr().out
    assert same(a, b) and not same(a, c)                            # another order of sums
    assert all(torch.allclose(a[k].double(), c[k].double(), rtol=1e-2, atol=1e-3) for k in a)


def test_the_trial_leaves_no_trace(dls, tmp_path, quick, monkeypatch, capsys):
    "A compiler that fails, at once or after a whole step: one line, and the run is the one without it"
    _, plain = run(dls, tmp_path/'plain', False)
    def fails(*_, **__): raise RuntimeError('the compiler\nis broken')
    monkeypatch.setattr(compiled.torch, 'compile', fails)
    _, a = run(dls, tmp_path/'a')
    monkeypatch.setattr(compiled.torch, 'compile', lambda f, **kw: f)
    monkeypatch.setattr(compiled, '_try_step', lambda *args, step=compiled._try_step: (step(*args), fails()))
    _, b = run(dls, tmp_path/'b')
    assert same(plain, a) and same(plain, b)
    said = [o for o in capsys.readouterr().out.splitlines() if 'not compiled' in o]
    assert said == ['Training steps are not compiled: the compiler is broken.']*2


def test_without_a_compiler(dls, tmp_path, capsys):
    from torch._inductor import config
    with config.patch({'cpp.cxx': ('no-such-compiler',)}): learn, _ = run(dls, tmp_path/'a')
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and said[0].startswith('Training steps are not compiled: no C++ compiler was found')
    assert learn.forwards.own[True] == {True}


def test_auto_compiles_what_was_measured_and_is_long_enough(dls, tmp_path, capsys):
    full, images = create_model('harmformer_mnist').config, EARNED_BACK[(8, 16), 2, 3, 2]
    assert pays(full, 2*images) and not pays(full, 2*images - 1)
    for other in (dict(depth=2), dict(img_size=28), dict(channels=[8, 16, 32]), dict(convs=None)): assert not pays({**full, **other}, 10**9)
    assert not pays(create_model('cnn').config, 10**9) and not pays({}, 10**9)
    run(dls, tmp_path/'a', 'auto')
    assert capsys.readouterr().out == ''


def test_says_what_compile_may_be(dls):
    with pytest.raises(ValueError, match="'auto', True or False"): harmformer_learner(dls, 'cnn', compile='yes')
    with pytest.raises(SystemExit, match='--compile is auto, yes or no'): harmformer_train(compile='maybe')
