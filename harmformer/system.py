"""What a run asks of the machine: whole files, the same random numbers everywhere, eval mode for a while, memory, processes, the commit."""

__all__ = ['WriteError', 'Stopped', 'whole_file', 'write_whole', 'remove_parts', 'check_room', 'write_tensors', 'read_tensors',
           'not_finite', 'in_a_line', 'random_stream', 'evaluating', 'memory_for_pictures', 'reuse_memory', 'start_processes', 'from_first',
           'first_before_others', 'commit']

import atexit, ctypes, errno, hashlib, json, os, secrets, shutil, subprocess, time, zlib
from contextlib import contextmanager
from pathlib import Path
import numpy as np, torch, torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save


# --- files: written under another name first, so that nobody ever sees half of one ---

class WriteError(OSError):
    "A file or folder cannot be written; the message names it and says what to do"


class Stopped(Exception):
    "Ctrl-C ended a run early; its state is saved, and the message says how to go on"


def _why(e):
    full = e.errno in (errno.ENOSPC, getattr(errno, 'EDQUOT', errno.ENOSPC))
    return 'the disk is full. Make room there' if full else f'{e.strerror or e}. Make that possible'


@contextmanager
def whole_file(path):
    "The name of a temporary file beside `path`, which replaces `path` at the end, or vanishes if anything fails"
    path = Path(path)
    part = path.with_name(f'{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part')
    try:
        yield part
        with open(part, 'rb+') as f: os.fsync(f.fileno())   # a power cut after the next line finds the whole file
        os.replace(part, path)
    except BaseException as e:
        try: part.unlink(missing_ok=True)
        except OSError: pass                                # where nothing can be written, nothing was
        if not isinstance(e, OSError) or isinstance(e, WriteError): raise
        raise WriteError(f'{path} cannot be written: {_why(e)}, or choose another place.') from e


def write_whole(
    path,
    content, # bytes, a string, or a function that writes to the path it is given
):
    "Write a file that is never there by half"
    with whole_file(path) as part:
        if isinstance(content, bytes): part.write_bytes(content)
        elif isinstance(content, str): part.write_bytes(content.encode('utf-8', 'surrogateescape'))  # names of files are bytes
        else: content(part)


def remove_parts(folder, pattern:str='*', older:float=0.):
    "Remove what killed processes left in `folder`: temporary files of `whole_file` that are `older`, in seconds"
    for part in Path(folder).glob(f'{pattern}.*.part'):
        try:
            if time.time() - part.stat().st_mtime >= older: part.unlink()
        except OSError: pass                                # another process was faster


def check_room(path, mb:int=50)->Path:
    "Make the folder `path` and see that files can be written there, before anything takes time"
    path = Path(path)
    try: path.mkdir(parents=True, exist_ok=True)
    except OSError as e: raise WriteError(f'{path} cannot be made: {_why(e)}, or choose another folder with --out.') from e
    write_whole(path/'.room', b'x')
    (path/'.room').unlink(missing_ok=True)
    if (free := shutil.disk_usage(path).free/1e6) >= mb: return path
    raise WriteError(f'{path}: {free:.0f} MB free, {mb} MB are needed. Make room, or choose another folder with --out.')


# --- tensors with a header, as safetensors: reading them runs no code, and a checksum covers every byte that counts ---

def _digest(tensors, header=''):
    "SHA-256 of the header and of names, shapes and numbers"
    h = hashlib.sha256(header.encode())
    for k in sorted(tensors):
        h.update(f'{k} {tuple(tensors[k].shape)} {tensors[k].dtype}'.encode())
        h.update(tensors[k].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def write_tensors(path, tensors:dict, header:dict):
    "Write tensors and what JSON can hold to one file"
    tensors = {k: v.detach().as_subclass(torch.Tensor).cpu().contiguous().clone() for k, v in tensors.items()}
    text = json.dumps(header)
    write_whole(path, save(tensors, {'harmformer': text, 'sha256': _digest(tensors, text)}))


def _open(path):
    with safe_open(path, 'pt') as f: meta, tensors = f.metadata() or {}, {k: f.get_tensor(k) for k in f.keys()}
    text = meta.get('harmformer') or '{}'
    header = json.loads(text)
    if not isinstance(header, dict): raise ValueError('its header is no dictionary')
    old = list(meta) == ['harmformer']              # of 0.1.0, with a checksum of the tensors in the header
    want, got = (header.get('sha256'), _digest(tensors)) if old else (meta.get('sha256'), _digest(tensors, text))
    if want != got: raise ValueError('its content is not what was saved' if want else 'it has no checksum')
    return {'sha256': got, **header}, tensors


def read_tensors(path)->tuple: # (header, tensors)
    "What is in a file of `write_tensors`, if it is whole and unchanged"
    if not Path(path).is_file(): raise FileNotFoundError(f'{path} is missing or no file')
    try: return _open(path)
    except PermissionError as e: raise ValueError(f'{path} may not be read: give yourself the permission') from e
    except Exception as e:  # a damaged file can fail in any way
        raise ValueError(f'{path} is damaged or was not written by harmformer ({in_a_line(e)}): get it again') from e


def not_finite(tensors):
    "The name of a tensor that holds NaN or infinity, if there is one"
    return next((k for k, v in tensors.items() if not torch.isfinite(v).all()), None)


def in_a_line(e, most:int=150)->str:
    "What an error of another library says, as a part of a sentence"
    return ' '.join(str(e).split())[:most] or type(e).__name__


# --- random numbers, eval mode, memory and processes ---

def random_stream(*key):
    "A stream of random numbers that depends on `key` alone: NumPy has frozen RandomState for ever, torch promises nothing"
    return np.random.RandomState([zlib.crc32(str(k).encode()) for k in key])


@contextmanager
def evaluating(model):
    "Within: `model` in eval mode, and afterwards as it was"
    training = model.training
    try: yield model.eval()
    finally: model.train(training)


def memory_for_pictures()->float:
    "Bytes that pictures may take: a third of the machine's memory"
    try: return os.sysconf('SC_PAGE_SIZE')*os.sysconf('SC_PHYS_PAGES')/3
    except (AttributeError, ValueError, OSError): return 1e9


def reuse_memory()->bool: # whether it could be done
    "Let glibc keep freed memory for the next large tensor (Linux; elsewhere nothing happens)"
    try: mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError): return False
    return bool(mallopt(-4, 0) and mallopt(-1, 2**31 - 1)) # M_MMAP_MAX: no maps of their own; M_TRIM_THRESHOLD: no giving back


def start_processes()->int: # how many there are
    "If a launcher started this process beside others: find them, and take the GPU that is ours"
    world = int(os.environ.get('WORLD_SIZE', 1))
    if world > 1:
        from accelerate import PartialState  # slow to import
        PartialState(cpu=not torch.cuda.is_available())
        atexit.register(_leave)
    return world


def _leave():
    "A process that ends among others without this may abort, and the launcher then ends the others"
    if dist.is_initialized(): dist.destroy_process_group()


def _together(): return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def from_first(f):
    "What `f` returns in the first of all processes: a file is read, or a folder chosen, once"
    res:list = [f() if not _together() or dist.get_rank() == 0 else None]
    if _together(): dist.broadcast_object_list(res)
    return res[0]


def first_before_others(f):
    "Call `f` in the first process and then in the others: what it downloads is there for them"
    if _together() and dist.get_rank(): dist.barrier()
    res = f()
    if _together() and not dist.get_rank(): dist.barrier()
    return res


def commit():
    "The commit of the code, if it lies in a git checkout"
    git = shutil.which('git')
    if not git: return None
    r = subprocess.run([git, 'rev-parse', '--short', 'HEAD'], cwd=Path(__file__).parent, capture_output=True, text=True)
    return r.stdout.strip() or None
