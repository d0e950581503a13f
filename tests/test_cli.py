"""The commands as a user runs them, with a tiny model: killed, resumed, refused, reported."""
import json, os, re, signal, subprocess, sys, time
from pathlib import Path
import pytest, torch
from PIL import Image
from harmformer import cli
from harmformer.core import load_model
from harmformer.data import benchmark_dls
from harmformer.cli import harmformer_eval, harmformer_predict, harmformer_train
from harmformer.runs import free_name
from harmformer.system import read_tensors

TINY = "from harmformer import core; core.PRESETS['harmformer_digits'].update(channels=(2, 2), depth=1, head_dim=4, kernel_size=7, rings=2); "
CODE = TINY + "from harmformer import cli, report; report.ANGLES = (0, 90); cli.harmformer_train({})"


ENV = {**os.environ, 'OMP_NUM_THREADS': '1'}


def command(cwd, args, wait=True):
    p = subprocess.Popen([sys.executable, '-c', CODE.format(args)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV)
    if not wait: return p
    out = p.communicate(timeout=600)[0]
    return p.returncode, out


def weights(path): return read_tensors(path/'checkpoint.safetensors')[1]


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    d = tmp_path_factory.mktemp('runs')
    code, out = command(d, "size=256, epochs=3, rival='none'")
    assert code == 0, out
    return d/'runs'/'digits-harmformer_digits-seed0', out


def test_a_run_says_what_it_does_and_reports(finished):
    path, out = finished
    first = next(l for l in out.splitlines() if l.startswith('Training'))
    assert 'harmformer_digits' in first and 'about' in first and '256 to train' in first
    assert int(re.search(r'\(([\d,]+) parameters', first)[1].replace(',', '')) < 3000    # the tiny one
    assert 'upright' in out and '% rotated' in out
    for f in ('best.safetensors', 'log.csv', 'config.json', 'results.json', 'report.html'): assert (path/f).exists()
    assert (path/'report.html').read_text().count('data:image/png;base64') == 8
    assert len((path/'log.csv').read_text().splitlines()) == 4


def test_killed_and_resumed_is_the_same(finished, tmp_path):
    p = command(tmp_path, "size=256, epochs=3, rival='none'", wait=False)
    path = tmp_path/'runs'/'digits-harmformer_digits-seed0'
    for _ in range(1200):
        if (path/'log.csv').exists(): break
        time.sleep(.1)
    os.kill(p.pid, signal.SIGKILL); p.wait()
    assert not (path/'results.json').exists()
    code, out = command(tmp_path, "size=256, epochs=3, rival='none', resume=True")
    assert code == 0, out
    a, b = weights(finished[0]), weights(path)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert json.loads((path/'results.json').read_text())['rows'][0]['turned'] == json.loads((finished[0]/'results.json').read_text())['rows'][0]['turned']


BAR = """
import time
from fastai.callback.core import Callback
from harmformer.data import benchmark_dls
from harmformer.train import fit, harmformer_learner
class Slow(Callback):                  # fastprogress leaves epochs out that take less than 0.2 s
    def before_batch(self): time.sleep(.15)
class StopAt(Callback):
    order = 99
    def after_batch(self):
        if self.training and self.train_iter == 13: self.learn.checkpoint.stop = True
dls = benchmark_dls('digits', size=64, bs=32, valid=20)
for resume in (False, True):
    print('resumed' if resume else 'begun')
    learn = harmformer_learner(dls, 'harmformer_digits', cbs=[Slow()] if resume else [Slow(), StopAt()])
    fit(learn, 9, 1e-2, path='.', resume=resume)
"""


def test_progress_bar_counts_on_after_a_resumption(tmp_path):
    out = subprocess.run([sys.executable, '-c', TINY + BAR], cwd=tmp_path, capture_output=True, text=True, env=ENV)
    assert out.returncode == 0, out.stderr
    begun, resumed = [sorted(set(map(int, re.findall(r'Epoch (\d+)/9', part)))) for part in out.stdout.split('resumed')]
    assert (begun, resumed) == ([1, 2, 3, 4, 5, 6, 7], [7, 8, 9])


def test_weights_load_and_evaluate(finished, capsys):
    harmformer_eval(str(finished[0]/'best.safetensors'))
    said, turned = capsys.readouterr().out, json.loads((finished[0]/'results.json').read_text())['rows'][0]['turned']
    assert 'own angle' in said and '45°' in said and f'{1 - turned:.4%}' in said


def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path):
    code, out = command(tmp_path, "resume=True, epochs=9")
    assert code != 0 and 'There is no run' in out and 'Traceback' not in out, out


TINY_SET = "set='channels=(2,2),depth=1,head_dim=4,rings=2'"


def test_small_first_then_large(tmp_path):
    args = f"model='harmformer_mnist', size=64, valid=20, small=2, epochs=1, rival='none', {TINY_SET}"
    code, out = command(tmp_path, args)
    assert code == 0, out
    path = tmp_path/'runs'/'digits-harmformer_mnist-seed0'
    small, large = [load_model(p/'best.safetensors') for p in (path/'small', path)]
    assert small.config['upscale'] == 1 and large.config['upscale'] == 2 and 'harmformer_mnist in small form' in out
    assert large.provenance['images_seen'] == small.provenance['images_seen'] + 64 and large.provenance['seconds'] >= small.provenance['seconds']
    code, again = command(tmp_path, args + ', resume=True')                # finished: nothing is trained again
    assert code == 0 and all(torch.equal(a, b) for a, b in zip(large.state_dict().values(), load_model(path/'best.safetensors').state_dict().values())), again


@pytest.mark.parametrize('args, why', [(dict(set='colour=3'), 'takes no colour'), (dict(set='norm=best'), "got 'best'"), (dict(set='depth'), 'name=value'),
                                       (dict(benchmark='minst'), 'no recipe.*mnist-rot-test'), (dict(model='cnm'), "no model is called 'cnm'.*harmformer_mnist"),
                                       (dict(out='file/runs'), '--out'), (dict(epochs=0), '--epochs is at least 1'), (dict(bs=1), '--bs is at least 2'),
                                       (dict(bs=0), '--bs'), (dict(size=0), '--size'), (dict(valid=-3), '--valid'), (dict(lr=-1.), '--lr is more than 0'),
                                       (dict(model='harmformer_unet'), 'not for digits'), (dict(model='cnn', small=1), 'no small form'),
                                       (dict(benchmark='.', pixels=33), '--pixels')])
def test_mistakes_are_told_at_once(tmp_path, monkeypatch, args, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'file').write_text('')
    with pytest.raises(SystemExit, match=why): harmformer_train(**args)
    assert not (tmp_path/'runs').exists()


def test_a_folder_of_pictures(tmp_path):
    for name, colour in dict(red=(200, 30, 30), blue=(30, 30, 200)).items():
        (tmp_path/'colours'/name).mkdir(parents=True)
        for i in range(10): Image.new('RGB', (30 + i, 40), colour).save(tmp_path/'colours'/name/f'{i}.png')
    code, out = command(tmp_path, f"benchmark='colours', epochs=2, bs=4, rival='none', {TINY_SET}")
    assert code == 0, out
    path = tmp_path/'runs'/'colours-harmformer_small_32-seed0'
    assert 'colours: 14 to train' in out and (path/'report.html').exists() and load_model(path/'best.safetensors').config['in_channels'] == 3
    code, out = command(tmp_path, "benchmark='colours/red'")               # no classes in it: nothing is left behind
    assert code and 'two or more classes' in out and 'Traceback' not in out and [p.name for p in (tmp_path/'runs').iterdir()] == [path.name], out


def test_code_of_the_readme(capsys):
    blocks = re.findall(r'```python\n(.*?)```', (Path(__file__).parent.parent/'README.md').read_text(encoding='utf-8'), re.S)
    assert len(blocks) == 2
    exec('\n'.join(blocks), {})
    right, moved = re.match(r'(\d+)% of .* by (\S+):', capsys.readouterr().out, re.S).groups()
    assert int(right) >= 90 and float(moved) < 1e-4


@pytest.mark.parametrize('there, fresh, last', [([], 'x', None), (['x'], 'x-2', 'x'), (['x', 'x-3'], 'x-2', 'x-3'), (['x', 'x-2', 'x-2b', 'x-old', 'xy'], 'x-3', 'x-2')])
def test_a_new_run_overwrites_nothing(tmp_path, there, fresh, last):
    for o in there: (tmp_path/o).mkdir()
    assert free_name(tmp_path, 'x', False).name == fresh
    if last: assert free_name(tmp_path, 'x', True).name == last
    else:
        with pytest.raises(ValueError, match='no run x'): free_name(tmp_path, 'x', True)


@pytest.mark.parametrize('args, why', [("'nothing'", 'no weights at nothing'), ("'pcam', 'digits'", 'made for 2 classes and 3 colours'),
                                       ("'drive', 'digits'", 'made for a map of'), ("'digits', n=0", '--n is at least 1')])
def test_what_cannot_be_evaluated_is_said(args, why):
    with pytest.raises(SystemExit, match=why): eval(f'harmformer_eval({args})')


def test_predict(tmp_path, capsys, finished):
    x, y = benchmark_dls('digits').test.dataset.batch(range(20))
    (tmp_path/'new').mkdir()
    for i, o in enumerate(x): Image.fromarray((255*o[0]).byte().numpy()).save(tmp_path/'new'/f'{i:02}.png')
    harmformer_predict('digits', [str(tmp_path/'new')], csv=str(tmp_path/'said.csv'))
    said = [int(l.rsplit(': ', 1)[1][0]) for l in capsys.readouterr().out.splitlines()]
    assert sum(a == b for a, b in zip(said, y.tolist())) >= 19 and len((tmp_path/'said.csv').read_text().splitlines()) == 21
    harmformer_predict(str(finished[0]), [str(tmp_path/'new'/'00.png')])            # the folder of a run
    with pytest.raises(SystemExit, match='missing'): harmformer_predict('digits', [str(tmp_path/'gone.png')])
    with pytest.raises(SystemExit, match='do not say vocab'): harmformer_predict('drive', [str(tmp_path/'new'/'00.png')])


@pytest.mark.parametrize('name', ['train', 'eval', 'report', 'predict', 'segment', 'export'])
def test_help_from_python(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['-c', '--help'])
    getattr(cli, f'harmformer_{name}')()               # shows its help, and starts nothing
    assert f'usage: harmformer_{name}' in capsys.readouterr().out
