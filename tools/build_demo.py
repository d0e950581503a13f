"""Puts onnxruntime-web into nbs/demo/ort, where the page in the browser looks for it: python3 tools/build_demo.py

npm downloads and verifies the package; three of its files are copied (14 MB), and none is committed. The networks, the example
pictures and their figures are committed: tools/make_demo.py makes them. The standard library is enough."""
import json, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent/'nbs'/'demo'
PACKAGE = 'onnxruntime-web@1.30.0'
RUNTIME = 'ort.wasm.min.mjs', 'ort-wasm-simd-threaded.mjs', 'ort-wasm-simd-threaded.wasm'


def whole(demo=DEMO):
    "Whether the runtime is there, in the size that the page expects."
    sizes = json.loads((demo/'demo.json').read_text(encoding='utf-8'))['files']
    return all((f := demo/'ort'/n).is_file() and f.stat().st_size == sizes.get(f'ort/{n}', f.stat().st_size) for n in RUNTIME)


def copy_runtime(demo=DEMO):
    "Copy the runtime from npm, unless it is there. Says in one sentence what is missing."
    if whole(demo): return
    npm = shutil.which('npm')
    if not npm: sys.exit('The page needs onnxruntime-web, which npm downloads, and npm is not installed: install Node.js (nodejs.org), then run this again.')
    print(f'Getting {PACKAGE} …', flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        r = subprocess.run([npm, 'pack', PACKAGE, '--silent', '--pack-destination', tmp], cwd=tmp, capture_output=True, text=True)
        if r.returncode: sys.exit(f'npm could not get {PACKAGE}: {(r.stderr or r.stdout).strip()[-300:] or "no reason given"}\nIs there a network connection?')
        (demo/'ort').mkdir(exist_ok=True)
        with tarfile.open(next(Path(tmp).glob('*.tgz'))) as tar:
            for name in RUNTIME: (demo/'ort'/name).write_bytes(tar.extractfile(f'package/dist/{name}').read())
    if not whole(demo): sys.exit(f'{PACKAGE} is not the one that nbs/demo/demo.json expects: its files have other sizes.')


if __name__ == '__main__':
    if len(sys.argv) > 1: sys.exit(__doc__)
    copy_runtime()
    print(f'{DEMO} is complete: any web server can serve it.')
