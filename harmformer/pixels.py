"""Pixels of pictures of any kind, cut to their middle square and scaled: all in memory, or, where they do not fit, read for every batch."""

__all__ = ['Header', 'read_header', 'read_stored', 'scaled', 'read_scaled', 'FilePixels']

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Any
import numpy as np
import torch
from PIL import Image, ImageOps, TiffImagePlugin
from harmformer.files import DataError, open_picture, read_pictures
from harmformer.system import in_a_line

TURNED_BY_EXIF = 5, 6, 7, 8                 # orientations that exchange width and height


@dataclass
class Header:
    "What a file says about its picture before it is decoded"
    width: int
    height: int
    channels: int                           # 3 also for grey pictures of eight bits: whether they have colour is seen later
    deep: bool = False                      # more than eight bits
    plain: bool = True                      # grey or colour, as every viewer shows it; otherwise channels are what they are


# --- values as they are stored ---

def _array(path):
    "A .npy file as (h, w, c), not yet read"
    try: a = np.load(path, mmap_mode='r', allow_pickle=False)
    except Exception as e:  # a damaged file can fail in any way
        raise DataError(f'{path} is truncated or no array ({in_a_line(e)}). Put a good copy in its place.') from e
    if a.ndim not in (2, 3) or not a.size or a.dtype.kind not in 'buif':
        raise DataError(f'{path} holds an array {a.shape} of {a.dtype}: a picture is an array of numbers (h, w), (h, w, c) or (c, h, w).')
    if a.ndim == 2: return a[..., None]
    return a.transpose(1, 2, 0) if a.shape[0] < min(a.shape[1:]) else a


def _is_tiff(path): return Path(path).suffix.lower() in ('.tif', '.tiff')


def _pages(path)->int:
    "How many channels a TIFF has as pages; 1 for any other file"
    if not _is_tiff(path) or _samples(path) > 4: return 1
    try:
        with Image.open(path) as im: return getattr(im, 'n_frames', 1)
    except Exception: return 1              # open_picture says what is wrong with it


def _samples(path)->int:
    "How many values a pixel of a TIFF has; 1 for any other file"
    if not _is_tiff(path): return 1
    try:
        with open(path, 'rb') as f:
            head = f.read(8)
            tags = TiffImagePlugin.ImageFileDirectory_v2(head + f.read(8)*(head[2] == 43))     # 43: sizes of eight bytes
            f.seek(tags.next)
            tags.load(f)
        return int(tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1))
    except Exception: return 1              # open_picture says what is wrong with it


def _many_samples(path, n):
    "A TIFF with `n` values per pixel, which Pillow refuses or reads only some of, as (h, w, c)"
    try: import tifffile  # pyright: ignore
    except ImportError as e:
        raise DataError(f'{path} is a TIFF with {n} values per pixel: `pip install tifffile` to read it, or save it as .npy.') from e
    try:
        with tifffile.TiffFile(path) as f: pages, page, a = len(f.pages), f.pages.first, f.pages.first.asarray()
    except Exception as e:  # a damaged file can fail in any way
        raise DataError(f'{path} is truncated or no image ({in_a_line(e)}). Put a good copy in its place.') from e
    if pages > 1:
        raise DataError(f'{path} is a stack of {pages} pictures with {n} channels each. Save the one to use as a picture of its own.')
    if a.ndim == 3 and a.dtype.kind in 'buif': return a.transpose(1, 2, 0) if page.planarconfig == 2 else a
    raise DataError(f'{path} holds an array {a.shape} of {a.dtype}: a picture is an array of numbers (h, w, c) or (c, h, w).')


def _opened(path):
    "The PIL image of a file that is no stack, or, of a TIFF with many channels, its array"
    if (n := _samples(path)) > 4: return _many_samples(path, n)
    try: im = open_picture(path, colour=False)
    except DataError as e:
        if n > 1 and 'cannot identify' in str(e): return _many_samples(path, n)        # such as two channels of 16 bits
        raise
    return im if n <= len(im.getbands()) else _many_samples(path, n)


def read_header(path)->Header:
    "Size, channels and depth of a picture, without decoding it where the format allows that"
    if Path(path).suffix.lower() == '.npy': return _of_array(_array(path))
    if (pages := _pages(path)) > 1:
        a = read_stored(path)
        return Header(a.shape[1], a.shape[0], pages, a.dtype != np.uint8, False)
    try:
        if (n := _samples(path)) > 4: raise ValueError('more than Pillow can read')
        with Image.open(path) as im:
            if n > len(im.getbands()): raise ValueError('Pillow would leave some out')
            size, mode, orientation = im.size, im.mode, im.getexif().get(0x0112, 1)
    except Exception:
        found = _opened(path)               # says what is wrong, if anything is
        if isinstance(found, np.ndarray): return _of_array(found)
        size, mode, orientation = found.size, found.mode, 1
    w, h = size[::-1] if orientation in TURNED_BY_EXIF else size
    return Header(w, h, 1, True) if mode[0] in 'IF' else Header(w, h, 3)


def _of_array(a):
    "The header of an array (h, w, c)"
    return Header(a.shape[1], a.shape[0], a.shape[2], a.dtype not in (np.uint8, np.bool_), False)


def _as_array(im):
    "A PIL image as (h, w, c) with its own values; palettes and the like as colours"
    if im.mode not in ('L', 'RGB') and im.mode[0] not in 'IF': im = im.convert('RGB')
    a = np.asarray(im)
    return a[..., None] if a.ndim == 2 else a


def read_stored(path)->np.ndarray: # (h, w, c) in uint8 or float32
    "The values of a picture as they are stored; pages of a TIFF are channels, a .npy holds (h, w), (h, w, c) or (c, h, w)"
    if Path(path).suffix.lower() == '.npy': a = np.array(_array(path))
    elif _pages(path) > 1:
        try:
            with Image.open(path) as im:
                found = []
                for i in range(getattr(im, 'n_frames', 1)):
                    im.seek(i)
                    found.append(_as_array(im.copy()))
            a = np.concatenate(found, -1)
        except Exception as e:
            raise DataError(f'{path} has pages that are truncated or differ in size ({in_a_line(e)}). Put a good copy in its place.') from e
    else: a = o if isinstance(o := _opened(path), np.ndarray) else _as_array(o)
    if a.dtype in (np.uint8, np.bool_): return a.astype(np.uint8)
    a = a.astype(np.float32)
    if np.isfinite(a).all(): return a
    raise DataError(f'{path} has values that are no numbers. Replace them, and save it again.')


def scaled(a, side:int)->np.ndarray: # (c, side, side), of the same kind of numbers
    "The middle square of an array (h, w, c), scaled"
    channels = [ImageOps.fit(Image.fromarray(np.ascontiguousarray(a[..., c])), (side, side)) for c in range(a.shape[-1])]
    return np.stack([np.asarray(o) for o in channels])


# --- many of them ---

def _stored_one(path, side, channels):
    a = read_stored(path)
    if a.shape[-1] == channels: return scaled(a, side)
    n = a.shape[-1]
    raise DataError(f'{path} has {n} channel{"s"*(n > 1)}, others have {channels}: give all pictures the same channels.')


def read_scaled(paths, side:int, as_stored:int=0)->torch.Tensor: # (n, c, side, side)
    "Pictures of one size: of eight bits, 3 channels; or, with `as_stored` channels, values as they are, in float32 if any is deep"
    def one(p): return _stored_one(p, side, as_stored) if as_stored else read_pictures([p], side)[0].numpy()
    with ThreadPoolExecutor(min(8, cpu_count() or 1)) as pool: found = list(pool.map(one, paths))
    if len({o.dtype for o in found}) > 1: found = [o.astype(np.float32) for o in found]
    return torch.from_numpy(np.stack(found))


class FilePixels:
    "Stands in for a tensor (n, c, side, side): an index gives another of its kind, and `float()` reads the files"
    def __init__(self, files, side, channels, as_stored=0, kept:Any=None, index=None, then=()):
        self.files, self.side, self.channels, self.as_stored, self.kept = files, side, channels, as_stored, kept
        self.index = torch.arange(len(files)) if index is None else index
        self.then = tuple(then)             # (function, one argument for each picture)

    @property
    def shape(self): return len(self.index), self.channels, self.side, self.side
    def __len__(self): return len(self.index)
    def __getitem__(self, i):
        return self._like(self.index[i], [(f, each[i]) for f, each in self.then])
    def _like(self, index, then): return FilePixels(self.files, self.side, self.channels, self.as_stored, self.kept, index, then)

    def mapped(self, f, each):
        "The same pictures, with `f(pixels, each)` applied when they are read"
        return self._like(self.index, [*self.then, (f, torch.as_tensor(each))])

    def float(self):
        "(n, c, side, side) in float32"
        if not len(self): return torch.zeros(self.shape)
        if self.kept is not None: x = torch.from_numpy(np.stack([self.kept[i] for i in self.index.flatten().tolist()]))
        else: x = read_scaled([self.files[i] for i in self.index.flatten().tolist()], self.side, self.as_stored)
        x = x[:, :self.channels]
        for f, each in self.then: x = f(x, each)
        return x.float()


def kept_pixels(n, channels, side, deep):
    "An array for the pixels of `n` pictures in a temporary file, which vanishes with it"
    file = tempfile.TemporaryFile(prefix='harmformer-')
    return np.memmap(file, np.float32 if deep else np.uint8, 'w+', shape=(n, channels, side, side))
