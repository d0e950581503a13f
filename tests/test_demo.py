"""The page in a real browser (nbs/demo): its answers are Python's, it works by keyboard alone and on a phone, and says what is wrong with damaged files.

HARMFORMER_SHOTS=1 keeps the screenshots as nbs/images/demo.png and demo-phone.png, which the front page shows."""
import base64, functools, http.server, json, os, shutil, sys, threading
from pathlib import Path

import numpy as np, pytest, torch
from PIL import Image

import run
from harmformer.core import load_model, rotate_image
from harmformer.data import benchmark_dls
from harmformer.orientation import relative_angle

pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
ROOT = Path(__file__).parent.parent
DEMO = ROOT/'nbs'/'demo'
sys.path.insert(0, str(ROOT/'tools'))
import build_demo
from make_demo import answers
from check_site import browser as find_browser

FACTS = json.loads((DEMO/'demo.json').read_text(encoding='utf-8'))
FLAGS = ('--no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --disable-background-networking '
         '--disable-component-update --disable-sync').split()


def pictures(tab):
    "The example pictures of a tab as the networks take them, (n, c, h, h) in [0, 1]."
    o = FACTS['pictures'][tab]
    return torch.from_numpy(np.frombuffer(base64.b64decode(o['pixels']), np.uint8).copy()).view(-1, o['channels'], o['size'], o['size'])/255


# --- the files ---

@torch.no_grad()
@pytest.mark.parametrize('file, weights, tab', [('digits.onnx', 'digits', 'digits'), ('vessels.onnx', 'drive', 'vessels'),
                                                ('vessels-plain.onnx', 'drive-unet', 'vessels')])
def test_files_are_what_the_weights_give(file, weights, tab):
    model, x = load_model(weights), rotate_image(pictures(tab), 20)
    got = answers(DEMO/file, x)
    def apart(): return ((got - model(x)).abs().max()/got.abs().max()).item()
    assert apart() < (1e-5 if tab == 'digits' else 3e-4)  # the U-Net in float32 and eager mode is itself 3e-5 away from float64
    next(model.parameters()).mul_(1.1)  # other weights give something else
    assert apart() > 1e-3


def test_figures_on_the_page():
    dls = benchmark_dls('digits', device='cpu')
    for net in FACTS['nets']['digits']:
        for part, dl in (('upright', dls.upright), ('rotated', dls.test)):
            x, y = dl.dataset.batch(range(len(dl.dataset)))
            right = (answers(DEMO/net['file'], x).argmax(1) == y).float().mean().item()
            assert abs(right - net[part]) < .0015 and f'{net[part]:.1%}' in FACTS['texts']['digits']
    ours, plain, other = FACTS['nets']['digits']
    assert plain['rotated'] < .5 < .9 < other['rotated'] < ours['rotated']


def test_download_is_small():
    sizes = FACTS['files']
    assert all((DEMO/f).stat().st_size == n for f, n in sizes.items() if not f.startswith('ort/'))
    assert sum(sizes.values()) + 500_000 < 25e6


def test_npm_is_named_where_it_is_missing(tmp_path, monkeypatch):
    shutil.copy(DEMO/'demo.json', tmp_path)
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(SystemExit, match='npm is not installed'): build_demo.copy_runtime(tmp_path)


# --- the page ---

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "The page with its runtime, in a folder of its own."
    demo = tmp_path_factory.mktemp('site')/'demo'
    shutil.copytree(DEMO, demo)
    try: build_demo.copy_runtime(demo)
    except SystemExit as e: pytest.skip(f'no runtime for the page: {e}')
    return demo


@pytest.fixture(scope='module')
def chromium():
    if not find_browser(): pytest.skip('no browser: install chromium')
    api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    with api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield browser
        browser.close()


class Plain(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


def serve(folder, handler=Plain):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f'http://127.0.0.1:{server.server_port}/'


@pytest.fixture
def opened(chromium, site):
    "A function that opens the page; `page.complaints` lists what the console says."
    contexts = []
    def go(width=1440, height=1010, handler=Plain, before=None, folder=site, **more):
        contexts.append(chromium.new_context(viewport=dict(width=width, height=height), **more))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)
        page.complaints = []
        page.on('console', lambda m: page.complaints.append(m.text) if m.type == 'error' else None)
        page.on('pageerror', lambda e: page.complaints.append(str(e)))
        if before: before(page)
        page.goto(serve(folder, handler))
        return page
    yield go
    for c in contexts: c.close()


def ready(page):
    page.wait_for_function('window.demo?.last')
    return page


def turn(page, degrees):
    return page.evaluate('''async a => { await demo.setAngle(a); const l = demo.last;
        return {degrees: l.degrees, probs: l.probs, reading: l.reading} }''', degrees)


@torch.no_grad()
def test_answers_are_pythons_at_every_angle(opened):
    page, x, model = ready(opened()), pictures('digits')[4:5], load_model('digits')
    said, files = [], [n['file'] for n in FACTS['nets']['digits']]
    for a in range(0, 361, 15):
        got = turn(page, a)
        assert got['degrees'] == a % 360
        rotated = rotate_image(x, a)
        want = [model(rotated), *[answers(DEMO/f, rotated) for f in files[1:]]]
        for p, logits in zip(got['probs'], want): assert np.abs(np.array(p) - logits.softmax(1)[0].numpy()).max() < 1e-4
        off = got['reading']['degrees'] - relative_angle(model, x, rotated).item()
        assert abs((off + 180) % 360 - 180) < .1
        said.append([int(np.argmax(p)) for p in got['probs']])
    ours, plain, _ = map(set, zip(*said))
    assert ours == {4} and len(plain) > 1
    assert 'right at 24 of 24 angles' in page.inner_text('#classes') and page.complaints == []


def test_threads_where_the_headers_allow(opened):
    page = ready(opened(handler=run.Isolated))
    assert page.evaluate('crossOriginIsolated') and int(np.argmax(turn(page, 100)['probs'][0])) == 4 and page.complaints == []


def test_dragging(opened):
    page = ready(opened())
    box = page.locator('#dial').bounding_box()
    x, y, r = box['x'] + box['width']/2, box['y'] + box['height']/2, box['width']*.45
    page.mouse.move(x, y - r)
    page.mouse.down()
    page.mouse.move(x - r*.7, y - r*.7, steps=3)
    page.mouse.move(x - r, y, steps=3)  # a quarter turn counter-clockwise
    page.mouse.up()
    page.wait_for_function('demo.last.degrees === 90')
    assert page.inner_text('#degrees') == '90°' and page.complaints == []


def test_drawing(opened):
    page = ready(opened())
    page.click('#own')
    box = page.locator('#picture').bounding_box()
    x, y, h = box['x'] + box['width']/2, box['y'] + box['height']/2, box['height']
    page.mouse.move(x + 3, y - .3*h)
    page.mouse.down()
    page.mouse.move(x - 3, y + .3*h, steps=8)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.answer').textContent === '1'")
    page.select_option('#truth', '7')  # the reader knows better
    page.wait_for_function("document.querySelector('.answer').title === 'wrong'")
    page.click('#clear')
    page.wait_for_function("document.querySelector('.answer').textContent === '–'")
    assert page.complaints == []


def test_keyboard_alone(opened):
    page = ready(opened())
    def focus(wanted, most=40):
        for _ in range(most):
            page.keyboard.press('Tab')
            if page.evaluate('w => document.activeElement.matches(w)', wanted): return
        raise AssertionError(f'Tab does not reach {wanted}')
    focus('#angle')
    for _ in range(3): page.keyboard.press('ArrowRight')
    page.wait_for_function('demo.last.degrees === 3')
    focus('[aria-label="Example of a 7"]')
    page.keyboard.press('Enter')
    page.wait_for_function('demo.state.subject.label === 7 && demo.state.subject.reference')
    focus('#attention')
    before = page.evaluate('demo.state.query[0]')
    page.keyboard.press('ArrowRight')
    assert page.evaluate('demo.state.query[0]') > before
    focus('#channel')
    page.keyboard.press('ArrowRight')
    assert page.inner_text('#which') == '2'
    focus('[name=tab]')
    page.keyboard.press('ArrowRight')
    page.wait_for_function('demo.last.maps')
    assert page.inner_text('h1:visible') == 'Rotate the retina' and page.complaints == []


def test_vessels(opened):
    page = ready(opened())
    page.check('[value=vessels]', force=True)
    page.wait_for_function('demo.last.maps')
    maps = page.evaluate('async () => { await demo.setAngle(90); return demo.last.maps }')
    want = load_model('drive')(rotate_image(pictures('vessels')[:1], 90)).sigmoid().detach().flatten().numpy()
    assert np.abs(np.array(maps[0]) - want).max() < 3e-4  # as for the files
    ours, plain = page.locator('#maps figcaption').all_inner_texts()[2:]
    assert ours == 'no difference, to rounding' and plain.startswith('largest difference 0.') and page.complaints == []


# --- what goes wrong is said ---

def failure(page):
    page.wait_for_selector('#status.failed')
    return page.inner_text('#said')


def damaged(data): return bytes(len(data))
def cut(data): return data[:-100]


@pytest.mark.parametrize('file, change, sentence', [('digits.onnx', damaged, 'digits.onnx is damaged'), ('cnn.onnx', cut, 'cnn.onnx is damaged: it has'),
                                                    ('digits.onnx', None, 'digits.onnx could not be loaded: the server says 404'),
                                                    ('demo.json', None, 'demo.json could not be loaded'),
                                                    ('ort/ort.wasm.min.mjs', None, 'The runtime is not in ort/')])
def test_damaged_and_missing_files(opened, site, tmp_path, file, change, sentence):
    shutil.copytree(site, tmp_path/'demo')
    target = tmp_path/'demo'/file
    if change: target.write_bytes(change(target.read_bytes()))
    else: target.unlink()
    assert failure(opened(folder=tmp_path/'demo')).startswith(sentence)


def test_without_webassembly(opened):
    assert 'WebAssembly, which this browser lacks' in failure(opened(before=lambda page: page.add_init_script('delete globalThis.WebAssembly')))


def test_broken_connection(opened):
    said = failure(opened(before=lambda page: page.route('**/digits.onnx', lambda route: route.abort())))
    assert said == 'digits.onnx could not be loaded: check the connection and reload the page.'


# --- how it looks ---

@pytest.mark.parametrize('name, width, height, scheme', [('demo', 1440, 900, 'light'), ('demo-phone', 390, 1240, 'dark')])
def test_screenshots(opened, tmp_path, name, width, height, scheme):
    page = ready(opened(width, height, color_scheme=scheme))
    page.evaluate('(async () => { for (let a = 5; a <= 360; a += 5) await demo.setAngle(a); await demo.setAngle(115) })()')
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    if width < 400:  # the answers are on the first screen of a phone, with what rotates the digit
        assert page.locator('#verdicts .answer').all_inner_texts()[0] == '4'
        assert all(0 < page.locator(o).bounding_box()['y'] < 760 for o in ('#verdicts', '#dial', '#angle'))
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == 'rgb(19, 20, 22)'
    assert dark == (scheme == 'dark') and page.complaints == []
    out = (ROOT/'nbs'/'images' if os.environ.get('HARMFORMER_SHOTS') else tmp_path)/f'{name}.png'
    page.screenshot(path=str(out))
    if out.parent.name == 'images': Image.open(out).convert('RGB').quantize(200, dither=Image.Dither.NONE).save(out, optimize=True)
    assert out.stat().st_size > 20_000
    page.check('[value=vessels]', force=True)
    page.wait_for_function('demo.last.maps')
    assert page.evaluate('document.documentElement.scrollWidth') <= width
