"""Faults of 0.1.0, one test or more for each: what was lost, silently wrong or a traceback is now right or a sentence.

Nearly all of these failed there. Commands are found as a user's shell finds them, by settings.ini."""
import configparser, contextlib, importlib, json, os, signal, stat, struct, subprocess, sys, tempfile, tracemalloc
from pathlib import Path
import h5py, numpy as np, pytest, torch
from conftest import write_drive
from fastai.callback.core import Callback
from PIL import Image
import harmformer
from harmformer.core import create_model, he_error, load_model, rotate_image, save_model
from harmformer.data import benchmark_dls
from harmformer.files import DataError, read_pcam, read_pictures
from harmformer.train import fit, harmformer_learner

ROOT = Path(harmformer.__file__).parent.parent
TINY = dict(channels=(2, 2), depth=1, head_dim=4, kernel_size=5, rings=1)
TINY_SET = 'channels=(2,2),depth=1,head_dim=4,kernel_size=5,rings=1'


def entry(name):
    "(module, function) of a command"
    settings = configparser.ConfigParser(delimiters=['='], interpolation=None)
    settings.read(ROOT/'settings.ini', encoding='utf-8')
    lines = dict(l.split('=') for l in settings['DEFAULT']['console_scripts'].split())
    return lines[f'harmformer_{name}'].split(':')


def function(name):
    "A command as a function"
    module, name = entry(name)
    return getattr(importlib.import_module(module), name)


def command(name, *args, **kwargs):
    "Call a command; the sentence that ended it"
    with pytest.raises(SystemExit) as e: function(name)(*args, **kwargs)
    said = str(e.value)
    assert said and '\n' not in said.strip(), said
    return said


def shell(name, *args, **env):
    "Run a command in a process of its own"
    module, function = entry(name)
    with tempfile.TemporaryDirectory() as d:
        script = Path(d)/f'harmformer_{name}'         # as pip writes it
        script.write_text(f"import sys\nfrom {module} import {function}\nif __name__ == '__main__': sys.exit({function}())\n")
        return subprocess.run([sys.executable, '-W', 'ignore', script, *args], capture_output=True, env={**os.environ, 'PYTHONPATH': str(ROOT), **env})


@contextlib.contextmanager
def within(seconds):
    def late(*_): raise TimeoutError('it hangs')
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try: yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- 1-3: a run that goes on ---

@pytest.fixture(scope='module')
def dls(): return benchmark_dls('digits', size=12, valid=4, bs=4, device='cpu')


class StopAt(Callback):
    "As Ctrl-C after so many batches of this process"
    order = 99
    def __init__(self, n): self.n, self.seen = n, 0
    def after_batch(self):
        self.seen += 1
        if self.seen == self.n: self.learn.checkpoint.stop = True


def run(dls, path, stop=None, resume=False, epochs=3):
    torch.manual_seed(1)
    learn = harmformer_learner(dls, 'harmformer_digits', cbs=[StopAt(stop)] if stop else None, dropout=.1, **TINY)
    with learn.no_bar(), learn.no_logging(): fit(learn, epochs, 1e-2, path=path, resume=resume)
    return {k: v.clone() for k, v in learn.model.state_dict().items()}


@pytest.fixture(scope='module')
def whole(dls, tmp_path_factory): return run(dls, tmp_path_factory.mktemp('whole'))


def same(a, b): return all(torch.equal(a[k], b[k]) for k in a)


def test_1_stopped_after_the_last_batch_of_an_epoch(dls, whole, tmp_path):
    run(dls, tmp_path, stop=3)
    assert same(run(dls, tmp_path, resume=True), whole)
    assert len((tmp_path/'log.csv').read_text().splitlines()) == 4


def test_2_stopped_again_right_after_resuming(dls, whole, tmp_path):
    run(dls, tmp_path, stop=2)
    run(dls, tmp_path, stop=1, resume=True)
    assert same(run(dls, tmp_path, resume=True), whole)


@pytest.mark.parametrize('epochs', [1, 3])
def test_3_killed_before_the_log_is_written(dls, tmp_path, monkeypatch, epochs):
    run(dls, (tmp_path/'whole').mkdir() or tmp_path/'whole', epochs=epochs)
    real, seen = os.replace, []
    def dies(a, b):
        if Path(b).name == 'log.csv': seen.append(b)
        if len(seen) == epochs: raise KeyboardInterrupt
        return real(a, b)
    (tmp_path/'killed').mkdir()
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(os, 'replace', dies)
        run(dls, tmp_path/'killed', epochs=epochs)
    run(dls, tmp_path/'killed', resume=True, epochs=epochs)
    assert (tmp_path/'killed'/'log.csv').read_text() == (tmp_path/'whole'/'log.csv').read_text()


# --- 4, 5: weights ---

def saved(path, change=lambda model: None, **header):
    "A file of weights that somebody has changed before it was saved"
    torch.manual_seed(0)
    model = create_model('harmformer_digits', num_classes=3, **TINY)
    change(model)
    save_model(model, path, **{**dict(vocab=['a', 'b', 'c'], mean=[10.], std=[20.]), **header})
    return path


def test_4_the_checksum_covers_the_header(tmp_path):
    path = saved(tmp_path/'w.safetensors')
    load_model(path)
    b = path.read_bytes()
    assert b.count(b'mean\\": [10.0]') == 1
    path.write_bytes(b.replace(b'mean\\": [10.0]', b'mean\\": [90.0]'))
    with pytest.raises(ValueError, match='get it again'): load_model(path)


@pytest.mark.parametrize('number', [float('nan'), float('inf')])
def test_4_weights_that_are_no_numbers(tmp_path, number):
    def spoil(model): model.head.linear.bias.data[0] = number
    with pytest.raises(ValueError, match='is not finite'): load_model(saved(tmp_path/'w.safetensors', spoil))


def test_4_numbers_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match='float64 and not torch.float32'): load_model(saved(tmp_path/'w.safetensors', lambda m: m.double()))


@pytest.mark.parametrize('header', [dict(std=[0.]), dict(std=[float('nan')]), dict(mean='grey'), dict(vocab=['a'])])
def test_4_a_header_that_cannot_be_used(tmp_path, header):
    Image.new('L', (32, 32), 99).save(tmp_path/'a.png')
    assert 'get it again' in command('predict', str(saved(tmp_path/'w.safetensors', **header)), [str(tmp_path/'a.png')])


@pytest.mark.parametrize('config', [dict(channels=[10**9]), dict(channels=[3000, 3000]), dict(depth=10**9), dict(depth=900), dict(kernel_size=9999),
                                    dict(img_size=10**9), dict(heads=0), dict(name=['x']), dict(name='nobody'), dict(norm=[]), dict(orders=[10**9]),
                                    dict(orders='abc'), dict(mask={}), dict(engine=None), dict(upscale=-1)])
def test_5_hostile_arguments_are_refused_at_once(tmp_path, config):
    path = saved(tmp_path/'w.safetensors', lambda m: m.config.update(config))
    with within(20), pytest.raises(ValueError) as e: load_model(path)
    assert str(path) in str(e.value) and '\n' not in str(e.value)


def test_5_weights_open_no_other_file(tmp_path):
    path = saved(tmp_path/'w.safetensors', lambda m: m.config.update(pretrained='digits'))
    with pytest.raises(ValueError, match='pretrained'): load_model(path)


def test_5_a_header_of_a_thousand_brackets(tmp_path):
    text = json.dumps({'__metadata__': {'harmformer': '['*100_000}}).encode()
    (tmp_path/'w.safetensors').write_bytes(struct.pack('<Q', len(text)) + text)
    with pytest.raises(ValueError, match='get it again'): load_model(tmp_path/'w.safetensors')


# --- 6: commands end in sentences ---

@pytest.fixture
def bomb(tmp_path):
    import zlib
    def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    header = struct.pack('>IIBBBBB', 20_000, 20_000, 8, 2, 0, 0, 0)
    (tmp_path/'bomb.png').write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(b'\0')) + chunk(b'IEND', b''))
    return str(tmp_path/'bomb.png')


@pytest.mark.parametrize('name', ['predict', 'segment'])
def test_6_a_decompression_bomb(bomb, name, tmp_path):
    args = ('digits', [bomb]) if name == 'predict' else ([bomb],)
    said = command(name, *args, **({} if name == 'predict' else dict(out=str(tmp_path/'out'))))
    assert 'bomb.png claims to have more than' in said and not (tmp_path/'out').exists()


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    "A finished run, made once."
    d = tmp_path_factory.mktemp('run')
    out = shell('train', '--size', '32', '--valid', '8', '--epochs', '1', '--rival', 'none', '--out', str(d), '--set', TINY_SET)
    assert out.returncode == 0, out.stderr
    return d/'digits-harmformer_digits-seed0'


@pytest.fixture
def copy(finished, tmp_path):
    import shutil
    return Path(shutil.copytree(finished, tmp_path/finished.name))


@pytest.mark.parametrize('file', ['config.json', 'results.json', 'log.csv', 'best.safetensors'])
@pytest.mark.parametrize('harm', [lambda b: b[:len(b)//2], lambda b: b'', lambda b: b'[1]', lambda b: b'{"rows": 3}', None], ids=['half', 'empty', 'list', 'other', 'gone'])
def test_6_a_damaged_run_is_not_reported(copy, file, harm):
    (copy/'report.html').unlink()
    if harm: (copy/file).write_bytes(harm((copy/file).read_bytes()))
    else: (copy/file).unlink()
    if file == 'log.csv' and harm and harm(b'x'*9) == b'x'*4: return  # half a log is a shorter one
    assert str(copy) in command('report', str(copy)) and not (copy/'report.html').exists()


@pytest.mark.parametrize('keep', [0, .5, .99])
def test_6_a_truncated_state_is_not_resumed(copy, keep):
    state, = [p for p in copy.iterdir() if p.name.startswith('checkpoint.')]
    state.write_bytes(state.read_bytes()[:int(keep*state.stat().st_size)])
    assert state.name in command('train', 'digits', size=32, valid=8, epochs=1, rival='none', out=str(copy.parent), resume=True, set=TINY_SET)


def test_6_a_terminal_that_knows_ascii_only(finished, tmp_path):
    for name, side in (('a', 40), ('b', 50)):
        (tmp_path/'two'/name).mkdir(parents=True)
        for i in range(8): Image.new('L', (side, 40), 30*i).save(tmp_path/'two'/name/f'{i}.png')
    out = shell('train', str(tmp_path/'two'), '--epochs', '1', '--rival', 'none', '--out', str(tmp_path/'runs'), '--set', TINY_SET, LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    assert out.returncode == 0 and b'Traceback' not in out.stderr, out.stderr


def test_6_a_table_into_a_missing_folder(tmp_path):
    Image.new('L', (32, 32), 99).save(tmp_path/'a.png')
    assert 'no folder' in command('predict', 'digits', [str(tmp_path/'a.png')], csv=str(tmp_path/'gone'/'t.csv'))
    assert 'no folder' in command('eval', 'digits', csv=str(tmp_path/'gone'/'t.csv'))


def test_6_a_name_that_is_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b'/\xff\xe9.png'
    Image.new('L', (32, 32), 99).save(tmp_path/'a.png')
    os.rename(tmp_path/'a.png', name)
    out = shell('predict', 'digits', os.fsdecode(name), '--csv', str(tmp_path/'t.csv'), LC_ALL='C.UTF-8')
    assert out.returncode == 0 and b'.png: ' in out.stdout, out.stderr
    assert b'\xff\xe9.png' in (tmp_path/'t.csv').read_bytes()


def test_6_a_full_disk_in_mid_run(tmp_path, monkeypatch):
    real = os.replace
    def full(a, b):
        if Path(b).name.startswith('checkpoint.'): raise OSError(28, os.strerror(28), str(a))
        return real(a, b)
    monkeypatch.setattr(os, 'replace', full)
    said = command('train', 'digits', size=32, valid=8, epochs=1, rival='none', out=str(tmp_path), set=TINY_SET)
    assert 'the disk is full' in said and 'checkpoint' in said
    assert sorted(p.name for p in tmp_path.rglob('*') if p.is_file()) == ['config.json']


# --- 7, 8, 10: pictures and data ---

def test_7_a_picture_stands_as_people_see_it(tmp_path):
    x = np.zeros((40, 80, 3), np.uint8)
    x[:, :40] = 200                                  # bright at the left as stored: at the top as seen
    im, exif = Image.fromarray(x), Image.Exif()
    exif[0x0112] = 6
    im.save(tmp_path/'a.png', exif=exif)
    seen = read_pictures([tmp_path/'a.png'], 40)[0, 0].float()
    assert seen[:5].mean() > seen[-5:].mean() and abs(seen[:, :5].mean() - seen[:, -5:].mean()) < 1
    torch.manual_seed(0)
    save_model(create_model('unet', channels=(2, 2)), tmp_path/'u.safetensors')
    function('segment')([str(tmp_path/'a.png')], out=str(tmp_path/'out'), weights=str(tmp_path/'u.safetensors'))
    assert all(Image.open(p).size == (40, 80) for p in (tmp_path/'out').iterdir())


@pytest.mark.parametrize('low', [-1., float('nan')])
def test_7_a_float_picture_below_zero(tmp_path, low):
    x = np.full((8, 8), .5, np.float32)
    x[0, 0] = low
    Image.fromarray(x).save(tmp_path/'a.tif')
    with pytest.raises(DataError, match='a.tif has values below 0'): read_pictures([tmp_path/'a.tif'])


def pcam(folder, x=None, y=None):
    folder.mkdir(parents=True)
    x = np.zeros((4, 96, 96, 3), np.uint8) if x is None else x
    y = np.zeros((len(x), 1, 1, 1), np.uint8) if y is None else y
    for key, a in dict(x=x, y=y).items():
        with h5py.File(folder/f'camelyonpatch_level_2_split_train_{key}.h5', 'w') as f: f[key] = a


@pytest.mark.parametrize('files, why', [(dict(y=np.full((4, 1, 1, 1), .5)), 'labels other than 0 and 1'), (dict(x=np.zeros((0, 96, 96, 3), np.uint8)), 'holds no images'),
                                        (dict(y=np.full((4, 1, 1, 1), np.nan)), 'labels other than 0 and 1'), (dict(x=np.zeros((4,), np.uint8)), 'no file of PCam')])
def test_8_strange_files_of_pcam(tmp_path, monkeypatch, files, why):
    pcam(tmp_path/'pcam', **files)
    monkeypatch.setenv('HARMFORMER_DATA', str(tmp_path))
    with pytest.raises(DataError, match=why): read_pcam('train')


@pytest.mark.parametrize('name', ['1st_manual/22_manual1.gif', 'mask/22_training_mask.gif'])
def test_8_an_all_black_mask(tmp_path, monkeypatch, name):
    write_drive(tmp_path, 'training', range(21, 26))
    Image.new('L', (130, 120)).save(tmp_path/'DRIVE'/'training'/name)
    monkeypatch.setenv('HARMFORMER_DATA', str(tmp_path))
    with pytest.raises(DataError, match='is all black'): benchmark_dls('drive', size=20)[0].one_batch()


def test_10_all_files_of_a_run_may_be_read_by_the_same_people(finished):
    assert len({stat.S_IMODE(p.stat().st_mode) for p in finished.iterdir()}) == 1


def test_10_a_pipe_named_like_a_picture(tmp_path):
    os.mkfifo(tmp_path/'a.png')
    with within(20): assert 'no regular file' in command('predict', 'digits', [str(tmp_path/'a.png')])


def test_10_answers_come_as_they_are_found(tmp_path, monkeypatch, capsys):
    for i in range(130): Image.new('L', (32, 32), i).save(tmp_path/f'{i:03}.png')
    (tmp_path/'129.png').write_bytes(b'oops')
    assert '129.png' in command('predict', 'digits', [str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == 128


def test_10_a_large_picture_takes_little_memory(tmp_path):
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (900, 1200, 3), dtype=np.uint8)).save(tmp_path/'a.png')
    torch.manual_seed(0)
    save_model(create_model('unet', channels=(2, 2)), tmp_path/'u.safetensors')
    segment = function('segment')
    tracemalloc.start()
    segment([str(tmp_path/'a.png')], out=str(tmp_path/'out'), weights=str(tmp_path/'u.safetensors'), overlap=0.)
    peak = tracemalloc.get_traced_memory()[1]        # of numpy: bytes for each pixel
    tracemalloc.stop()
    assert peak/(900*1200) < 30


# --- 9: one place that looks at arguments, one that looks at images ---

@pytest.mark.parametrize('argument', [dict(heads=0), dict(channels=()), dict(norm_eps=float('nan')), dict(img_size=-32), dict(channels=(2, -2)), dict(depth=-1),
                                      dict(head_dim=0), dict(num_classes=0), dict(dropout=float('nan')), dict(convs=0), dict(upscale=0)])
def test_9_arguments_out_of_range(argument):
    with pytest.raises(ValueError, match=f'harmformer_mnist: {next(iter(argument))} is'): create_model('harmformer_mnist', **argument)


@pytest.mark.parametrize('change, error, why', [
    (lambda m, x: m.half()(x.half()), TypeError, 'float32 or float64, not in torch.float16'), (lambda m, x: m.bfloat16()(x.bfloat16()), TypeError, 'not in torch.bfloat16'),
    (lambda m, x: m((255*x).byte()), TypeError, 'images are torch.uint8'), (lambda m, x: m(x.numpy()), TypeError, 'not a ndarray'),
    (lambda m, x: m.train()(x[:1]), ValueError, 'at least two images'), (lambda m, x: m(x*1e20), FloatingPointError, 'too large'),
    (lambda m, x: m(x[:0]), ValueError, 'no images')])
def test_9_images_that_cannot_be_answered(change, error, why):
    model = create_model('harmformer_digits', **TINY).eval()
    with pytest.raises(error, match=why): change(model, torch.rand(2, 1, 32, 32))


def test_9_a_picture_of_one_pixel():
    with pytest.raises(ValueError, match='1×1 pixels are too few'): create_model('unet', channels=(2,))(torch.rand(2, 3, 1, 1))


@pytest.mark.parametrize('n, degrees, why', [(0, 90., 'at least one'), (2, float('nan'), 'finite number')])
def test_9_no_number_is_no_error_of_equivariance(n, degrees, why):
    with pytest.raises(ValueError, match=why): he_error(lambda x: x, torch.rand(n, 1, 8, 8), degrees)


@pytest.mark.parametrize('degrees', [float('nan'), float('inf')])
def test_9_an_angle_that_is_no_number(degrees):
    with pytest.raises(ValueError, match='finite number'): rotate_image(torch.rand(1, 8, 8), degrees)


# --- 11 ---
