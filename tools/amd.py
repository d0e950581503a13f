"""Runs a command with MKL's faster code on an AMD processor: python3 tools/amd.py COMMAND…

    python3 tools/amd.py python3 run.py train
    python3 tools/amd.py python benchmarks/campaign.py work

torch computes matrix products and Fourier transforms in MKL, and MKL takes slower code where the processor is not Intel's. It asks a function
that takes no arguments; this preloads a library in which that function says yes. 26_speed shows what it is worth. Results differ by rounding.
It needs Linux and a C compiler. Elsewhere, and where MKL runs its fast code anyway, the command runs as it is.
"""
import os, platform, shutil, subprocess, sys
from pathlib import Path

CODE = 'int mkl_serv_intel_cpu_true(void) { return 1; }'


def library():
    "The library, made on first use; None where it is of no use or cannot be made."
    info, compiler = Path('/proc/cpuinfo'), shutil.which('cc') or shutil.which('gcc')
    if platform.machine() != 'x86_64' or not info.exists() or 'AuthenticAMD' not in info.read_text(): return None
    if not compiler: print('tools/amd.py: no C compiler (on Debian or Ubuntu: sudo apt install gcc); the command runs as it is.', file=sys.stderr); return None
    file = Path(os.environ.get('XDG_CACHE_HOME') or Path.home()/'.cache')/'harmformer'/'mkl_amd.so'
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f'.{os.getpid()}')
        subprocess.run([compiler, '-shared', '-fPIC', '-x', 'c', '-', '-o', part], input=CODE, text=True, check=True)
        part.replace(file)
    return file


def environment():
    "Variables with which a process gets MKL's faster code; none where that changes nothing."
    file, before = library(), os.environ.get('LD_PRELOAD')
    return {'LD_PRELOAD': f'{file} {before}' if before else str(file)} if file else {}


if __name__ == '__main__':
    if len(sys.argv) < 2: sys.exit(__doc__)
    try: os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **environment()})
    except OSError as e: sys.exit(f'{sys.argv[1]}: {e.strerror}')
