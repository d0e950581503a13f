"""Lists what is broken in the notebooks and in a folder of rendered pages, and fails if anything is.

    python3 tools/check_site.py          # the notebooks alone: no Quarto needed
    python3 tools/check_site.py _docs    # the pages too

In the notebooks: what Quarto would make worse. In the pages: those that are missing (one is expected for each notebook),
links to files or anchors that do not exist, missing images, style sheets and scripts, images without alt text, TeX that no
reader should see, tracebacks, API entries of special methods; and, where a browser is installed, pages that are wider than
a phone. Links to other sites are not followed; those to the address in settings.ini are the site's own. The standard
library is enough."""
import base64, html, json, re, shutil, subprocess, sys, tempfile
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# A formula in dollars, a dollar that opens one, \command, \( \) \[ \]. Prices such as $5 pass.
RAW_TEX = re.compile(r'\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d)|\$[^\s\d]|\\[a-zA-Z]+|\\[()\[\]]')
CODE = {'pre', 'code', 'script', 'style', 'math', 'svg', 'textarea'}
INLINE = {'a', 'b', 'em', 'i', 'mark', 'small', 'span', 'strong', 'sub', 'sup'}
VOID = {'area', 'base', 'br', 'col', 'embed', 'hr', 'img', 'input', 'link', 'meta', 'source', 'track', 'wbr'}


def raw_tex(text):
    "Each piece of TeX in `text`, with a little of what follows."
    return [' '.join(text[m.start():m.end() + 20].split()) for m in RAW_TEX.finditer(text)]


def page_name(notebook):
    "What nbdev calls the page of a notebook: 00_fields.ipynb -> fields.html"
    return re.sub(r'^\d+[a-zA-Z0-9]*_', '', Path(notebook).stem.lower()) + '.html'


class Page(HTMLParser):
    "The anchors, links and files that a page names; its prose, without code and formulas; all of its text."
    def __init__(self, html):
        super().__init__()
        self.ids, self.links, self.files, self.wordless, self.errors = {'', 'top'}, [], [], [], 0
        self.prose, self.text, self.hidden, self.open = [], [], None, 0  # hidden: the tag of code or of a formula that we are in
        self.feed(html)
        self.close()
        self.prose, self.text = ''.join(self.prose), ''.join(self.text)

    def handle_starttag(self, tag, attrs):
        a = {k: v or '' for k, v in attrs}
        classes = a.get('class', '').split()
        self.ids |= {a[k] for k in ('id', 'name') if k in a}
        if tag == 'a' and a.get('href'): self.links.append(a['href'])
        if tag == 'link' and a.get('href'): self.files.append(a['href'])
        if 'src' in a: self.files.append(a['src'])
        if tag == 'img' and not a.get('alt', '').strip(): self.wordless.append(a.get('src', ''))
        self.errors += 'cell-output-error' in classes or a.get('data-mime-type', '').endswith('jupyter.error')
        if tag in VOID: return
        if self.hidden == tag: self.open += 1
        elif not self.hidden and (tag in CODE or 'math' in classes): self.hidden, self.open = tag, 1
        elif tag not in INLINE: self.prose.append('\n')

    def handle_endtag(self, tag):
        if tag == self.hidden:
            self.open -= 1
            if not self.open: self.hidden = None
        elif tag not in INLINE: self.prose.append('\n')

    def handle_data(self, data):
        if self.hidden not in ('script', 'style'): self.text.append(data)
        if not self.hidden: self.prose.append(data)


def prose_of(markdown):
    "`markdown` without code blocks and links: what a reader sees as plain words, or as `words`."
    markdown = re.sub(r'(?s)```.*?```|^ {4}[^\n]*', ' ', markdown)
    return re.sub(r'!?\[[^\]]*\]\([^)]*\)', ' ', markdown)


def blurred(cells):
    "Which cells hold a figure of matplotlib that was drawn before `%load_ext harmformer.figures` came into the notebook: it has a dpi, but no size on the page."
    if not any('%load_ext harmformer.figures' in ''.join(c['source']) for c in cells): return []
    def old(o):
        png = ''.join(o.get('data', {}).get('image/png', ''))
        return b'pHYs' in base64.b64decode(png[:400]) and not o.get('metadata', {}).get('image/png', {}).get('width')
    return [i for i, c in enumerate(cells) if any(map(old, c.get('outputs', [])))]


def source_problems(nbs, columns=88, kilobytes=500):
    "What Quarto would make worse of the notebooks in the folder `nbs`, as a list of sentences."
    bad = []
    for path in sorted(Path(nbs).glob('[!_]*.ipynb')):
        cells, size = json.loads(path.read_text(encoding='utf-8'))['cells'], path.stat().st_size//1000
        if size > kilobytes: bad.append(f'{path.name}: {size} KB; smaller figures load faster')
        bad += [f'{path.name}, cell {i}: run it again, its figure is not sharp' for i in blurred(cells)]
        for i, c in enumerate(cells):
            where, src = f'{path.name}, cell {i}', ''.join(c['source'])
            if c['cell_type'] == 'markdown':
                bad += [f'{where}: an image alone in its paragraph loses its alt text; end the line with <!-- -->'
                        for p in re.split(r'\n\s*\n', src) if re.fullmatch(r'\s*!\[[^\]]*\]\([^)]*\)\s*', p)]
                bad += [f'{where}: {name} is not a link' for name in re.findall(r'\b\d\d_[a-z]\w+', prose_of(src))]
            elif re.search(r'^#\|\s*export', src, re.M):
                bad += [f'{where}: {m} gets an API entry; define it in its class' for m in re.findall(r'@patch\ndef (__\w+__)', src)]
            elif not re.search(r'^#\|\s*(hide|default_exp|echo: false)', src, re.M):
                bad += [f'{where}: {len(line)} columns wrap on the page: {line[:60]}' for line in src.splitlines()
                        if len(line) > columns and not line.startswith('#|')]
    return bad


def problems(site, notebooks=(), base=None):
    "What is broken in the folder `site`, as a list of sentences."
    site = Path(site).resolve()
    pages = {p: Page(p.read_text(encoding='utf-8')) for p in sorted(site.rglob('*.html')) if 'site_libs' not in p.parts}
    bad = [f'{page_name(nb)}: missing, the page of {Path(nb).name}' for nb in notebooks if site/page_name(nb) not in pages]

    def find(page, address):
        "(file, anchor) that `address` leads to on this site; None for another site."
        own = bool(base) and (address + '/').startswith(base.rstrip('/') + '/')
        if own: address = '/' + address[len(base.rstrip('/')):].lstrip('/')
        url = urlsplit(address)
        if url.scheme or url.netloc: return None
        path = unquote(url.path)
        file = page if not path else site/path.lstrip('/') if path[0] == '/' else (page.parent/path).resolve()
        # nbdev's own links, with the whole address, go to every exported name: also to methods that have no heading
        return file/'index.html' if file.is_dir() else file, '' if own else unquote(url.fragment)

    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for address in dict.fromkeys(page.links):
            if not (found := find(path, address)): continue
            file, anchor = found
            if not file.is_file(): bad.append(f'{name}: broken link {address}')
            elif file in pages and anchor not in pages[file].ids: bad.append(f'{name}: no such anchor {address}')
        for address in dict.fromkeys(page.files):
            if (found := find(path, address)) and not found[0].is_file(): bad.append(f'{name}: missing file {address[:80]!r}')
        bad += [f'{name}: no alt text for {src[:80]!r}' for src in page.wordless]
        bad += [f'{name}: an API entry of {i}' for i in sorted(page.ids) if re.search(r'\.__\w+__$', i)]
        bad += [f'{name}: raw TeX {t!r}' for t in raw_tex(page.prose)]
        if page.errors or 'Traceback (most recent call last)' in page.text: bad.append(f'{name}: an error among the outputs')
    return bad


BROWSERS = 'google-chrome', 'google-chrome-stable', 'chromium', 'chromium-browser', 'chrome'
MEASURE = '''<!doctype html><meta charset="utf-8">%s<pre id="seen"></pre><script>
onload = () => seen.textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(
  f => [f.getAttribute('src'), f.contentDocument.documentElement.scrollWidth]))</script>'''


def browser():
    "The command of a browser, or None."
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def open_page(path, timeout=120):
    "The page as it is once its scripts have run."
    with tempfile.TemporaryDirectory() as profile:
        flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--allow-file-access-from-files',
                 f'--user-data-dir={profile}', '--virtual-time-budget=20000', '--dump-dom']
        return subprocess.run([browser(), *flags, Path(path).as_uri()], capture_output=True, text=True, timeout=timeout).stdout


def too_wide(site, width=390):
    "Pages that a screen of `width` pixels does not hold, as a list of sentences."
    site = Path(site).resolve()
    frames = ''.join(f'<iframe src="{p.name}" width="{width}" height="800" style="border: 0"></iframe>' for p in sorted(site.glob('*.html')))
    look = site/'look.htm'
    look.write_text(MEASURE % frames, encoding='utf-8')
    try: dom = open_page(look)
    finally: look.unlink()
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S)[1]))
    return [f'{page}: {wide} pixels wide on a screen of {width}' for page, wide in seen if wide > width]


if __name__ == '__main__':
    if len(sys.argv) > 2: sys.exit(__doc__)
    root, ini = Path(__file__).parent.parent, ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    bad = source_problems(root/'nbs')
    if len(sys.argv) == 2:
        bad += problems(sys.argv[1], sorted(root.glob('nbs/[!_]*.ipynb')), ini['DEFAULT']['doc_host'] + ini['DEFAULT']['doc_baseurl'])
        if browser(): bad += too_wide(sys.argv[1])
        else: print('No browser: the width of the pages is not checked.')
    print(*bad, f'{len(bad)} problems', sep='\n')
    sys.exit(len(bad) > 0)
