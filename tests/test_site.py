"""The site as a reader meets it: pages, links, pictures, formulas. Quarto builds the real one; here nbconvert renders the
notebooks as they are stored, and a browser measures them where there is one.

Each rule is a function that lists what breaks it; each is also tried on an example that it must catch."""
import base64, html, io, json, re, shutil, subprocess, sys
import xml.etree.ElementTree as ET
from configparser import ConfigParser
from pathlib import Path

import nbformat, pytest, yaml
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbdev.doclinks import _nbpath2html
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT/'tools'))
import check_site
from check_site import page_name, problems, raw_tex, source_problems, too_wide
from index_names import exported, with_names
from own_address import set_addresses

# As pandoc finds them: code first, then formulas; one in single dollars touches both and does not run over an empty line.
CODE_OR_MATH = re.compile(r'(?P<code>(?P<ticks>`+).+?(?P=ticks)|\n\s*\n(?: {4}[^\n]*\n?)+)|\$\$(?P<display>.+?)\$\$'
                          r'|(?<!\\)\$(?P<inline>(?=\S)(?:(?!\n\s*\n)[^$\\]|\\.)+?(?<=\S))\$(?!\d)', re.S)
ARITY = dict(mfrac=2, mroot=2, msub=2, msup=2, munder=2, mover=2, msubsup=3, munderover=3)


def replace_math(markdown, new):
    "`markdown` with each formula replaced by new(tex, is_display)."
    def one(m):
        if m['code']: return m[0]
        tex = m['display'] or m['inline']
        return new(re.sub(r'\n>\s?', '\n', tex), bool(m['display']))  # a formula in a blockquote
    return CODE_OR_MATH.sub(one, markdown)


def prose(markdown): return CODE_OR_MATH.sub(' ', markdown)


def mathml(tex, display=False):
    "The formula as MathML; ValueError if it is not sound. latex2mathml alone forgives braces and unknown commands."
    braces = re.sub(r'\\.|[^{}]', '', tex)
    while '{}' in braces: braces = braces.replace('{}', '')
    if braces: raise ValueError('unbalanced braces')
    try: out = convert(re.sub(r'\\arg\b', r'\\operatorname{arg}', tex), display='block' if display else 'inline')  # the one that it lacks
    except Exception as e: raise ValueError(type(e).__name__) from e
    try: tree = ET.fromstring(out)
    except ET.ParseError as e: raise ValueError('a misplaced &') from e
    for e in tree.iter():
        if (e.text or '').startswith('\\') and len(e.text) > 1: raise ValueError(f'unknown command {e.text}')
        if len(e) != ARITY.get(name := e.tag.split('}')[-1], len(e)): raise ValueError(f'an argument is missing ({name})')
    return out


def documents(root):
    "(file, where in it, Markdown) of everything that is written in Markdown."
    for path in sorted(root.glob('nbs/[!_]*.ipynb')):
        for i, c in enumerate(json.loads(path.read_text(encoding='utf-8'))['cells']):
            if c['cell_type'] == 'markdown': yield path, f'{path.name}, cell {i}', ''.join(c['source'])
            for o in c.get('outputs', []):
                if text := o.get('data', {}).get('text/markdown'): yield path, f'{path.name}, output of cell {i}', ''.join(text)
    for path in sorted(root.glob('*.md')): yield path, path.name, path.read_text(encoding='utf-8')


def bad_formulas(root):
    bad = []
    for _, where, md in documents(root):
        def check(tex, display):
            try: mathml(tex, display)
            except ValueError as e: bad.append(f'{where}: {e}: {tex}')
            return ''
        replace_math(md, check)
        bad += [f'{where}: a formula that does not close? {t}' for t in raw_tex(prose(md))]
    return bad


def slug(heading):
    "The anchor that Quarto and GitHub make of a heading."
    return re.sub(r'\s+', '-', re.sub(r'[^\w\s-]', '', heading.lower()).strip())


def bad_links(root):
    "Relative links that lead nowhere, and images without a file or without words for those who do not see them."
    anchors, bad = {}, []
    for path, _, md in documents(root): anchors.setdefault(path, set()).update(map(slug, re.findall(r'^#+ (.+)$', md, re.M)))
    for path, where, md in documents(root):
        for image, words, to in re.findall(r'(!?)\[([^\]]*)\]\(([^)\s]+)[^)]*\)', prose(md)):
            if image and not words.strip(): bad.append(f'{where}: no alt text for {to}')
            if re.match(r'[a-z]+:', to): continue
            file, _, anchor = to.partition('#')
            target = (path.parent/file).resolve() if file else path
            if not target.exists(): bad.append(f'{where}: nothing at {to}')
            elif anchor and anchor not in anchors.get(target, ()): bad.append(f'{where}: no heading for {to}')
        bad += [f'{where}: no alt text in {tag}' for tag in re.findall(r'<img [^>]*>', prose(md)) if not re.search(r'alt="[^"]+"', tag)]
    return bad


def bad_config(root):
    "YAML that does not parse, files that _quarto.yml names and that are not there (nbdev writes nbdev.yml itself)."
    bad, files = [], [root/'_quarto.yml', root/'nbs'/'sidebar.yml', *root.glob('.github/**/*.y*ml')]
    for f in files:
        try: yaml.safe_load(f.read_text(encoding='utf-8'))
        except yaml.YAMLError as e: bad.append(f'{f.name}: {e}')
    if bad: return bad
    q = yaml.safe_load(files[0].read_text(encoding='utf-8'))
    page, web = q['format']['html'], q['website']
    named = [web['favicon'], web['open-graph']['image'], web['twitter-card']['image'], page['css'], page['include-after-body'], *q['metadata-files']]
    return [f'_quarto.yml: no file {n}' for n in named if n != 'nbdev.yml' and not (root/'nbs'/n.lstrip('/')).is_file()]


@pytest.mark.parametrize('rule', [bad_formulas, bad_links, bad_config], ids=lambda f: f.__name__)
def test_rule(rule): assert rule(ROOT) == []


@pytest.mark.parametrize('tex', [r'$\frac{a}{b$', r'$\frac{a}$', r'$\alpah$', r'$a & b$', r'so $x_1 + y', r'then \alpha is'])
def test_bad_formula_is_caught(tmp_path, make_nb, tex):
    make_nb('00_good', title='# A\n\n> B\n\n    echo $HOME\n\n`$\\no$`, $5 and $6, $\\frac{a}{b}_{\\{c\\}}$\n\n> $$a\n> b$$')
    assert bad_formulas(tmp_path) == []
    make_nb('01_bad', title=f'# A\n\n> B\n\nText {tex}')
    assert len(bad_formulas(tmp_path)) >= 1


@pytest.mark.parametrize('link', ['[a](01_gone.ipynb)', '[a](00_good.ipynb#gone)', '[a](#gone)', '![a](gone.png)', '![](a.png)', '<img src="a.png">'])
def test_bad_link_is_caught(tmp_path, make_nb, link):
    make_nb('00_good', title='# A\n\n> B\n\n## In between\n\n[a](#in-between) [b](00_good.ipynb#in-between) ![c](a.png) `[d](gone)`')
    (tmp_path/'nbs'/'a.png').touch()
    assert bad_links(tmp_path) == []
    (tmp_path/'README.md').write_text(link.replace('(0', '(nbs/0').replace('(a.png', '(nbs/a.png'))
    assert len(bad_links(tmp_path)) == 1


def test_bad_config_is_caught(tmp_path):
    (tmp_path/'nbs').mkdir()
    for f in ('_quarto.yml', 'nbs/sidebar.yml'): shutil.copy(ROOT/f, tmp_path/f)
    assert len(bad_config(tmp_path)) == 5
    (tmp_path/'nbs'/'sidebar.yml').write_text('a: [1')
    assert len(bad_config(tmp_path)) == 1


def test_sources(): assert source_problems(ROOT/'nbs') == []


@pytest.mark.parametrize('text, code, complaint', [
    ('![what is seen](a.png)', '', 'loses its alt text'), ('as in `02_conv`', '', '02_conv is not a link'),
    ('> the lemma of 02_conv', '', '02_conv is not a link'), ('', 'x = 1' + ' '*90 + '# far', 'columns wrap'),
    ('', '#| export\n@patch\ndef __repr__(self:A): return 1', '__repr__ gets an API entry')])
def test_bad_source_is_caught(tmp_path, make_nb, text, code, complaint):
    make_nb('00_good', '#| hide\n' + 'x'*99, '#| export\nclass A:\n    def __repr__(self): return 1', '#| fig-alt: "' + 'x'*90 + '"\n1',
            title='# A\n\n> B\n\n![seen](a.png) <!-- -->\n\nIn [02_conv](02_conv.ipynb), ![a](a.png)\n\n```\n02_conv\n```')
    assert source_problems(tmp_path/'nbs') == []
    make_nb('01_bad', code, title=f'# A\n\n> B\n\n{text}')
    found = source_problems(tmp_path/'nbs')
    assert len(found) == 1 and complaint in found[0]


def test_old_and_heavy_figures_are_caught(make_nb):
    png = io.BytesIO()
    Image.new('L', (9, 9)).save(png, 'png', dpi=(80, 80))
    def problems(*codes, data=base64.b64encode(png.getvalue()).decode(), **metadata):
        path = make_nb('00_a', *codes)
        nb = nbformat.read(path, 4)
        nb.cells[-1].outputs = [nbformat.v4.new_output('display_data', {'image/png': data}, metadata={'image/png': metadata})]
        nbformat.write(nb, path)
        return source_problems(path.parent)
    assert problems('x = 1') == problems('%load_ext harmformer.figures', width=4) == []
    assert 'is not sharp' in problems('%load_ext harmformer.figures', 'x = 1')[0]
    assert '600 KB' in problems('x = 1', data='A'*600_000)[0]


def test_page_names():
    notebooks = sorted(ROOT.glob('nbs/[!_]*.ipynb'))
    assert [page_name(p) for p in notebooks] == [_nbpath2html(p).name for p in notebooks]  # as nbdev has it
    assert len({page_name(p) for p in notebooks}) == len(notebooks)  # 12_data and 20_data would overwrite each other


# What Quarto's own style sheet does about width: blocks of code wrap, outputs and formulas scroll, inline code in a list does neither.
QUARTO = ('body {margin: 0} main {padding: 0 1em} .highlight pre {white-space: pre-wrap; overflow-wrap: anywhere} pre {overflow-x: auto}'
          'math {display: block math; overflow-x: auto; max-width: 100%} li > code {white-space: pre}')


def render(nbs, out):
    "The notebooks of `nbs` as pages in `out`: formulas as MathML, links and anchors as on the site."
    exporter = HTMLExporter(template_name='basic', exclude_anchor_links=True, filters={'clean_html': lambda s: s})  # half the time
    for d in ('images', 'demo', 'styles.css'):
        if (nbs/d).is_dir(): shutil.copytree(nbs/d, out/d)
        elif (nbs/d).exists(): shutil.copy(nbs/d, out/d)
    for path in sorted(nbs.glob('[!_]*.ipynb')):
        nb, formulas = nbformat.read(path, as_version=4), []
        def token(tex, display):
            try: formulas.append(mathml(tex, display))
            except ValueError: return f'${tex}$'
            return f'FORMULA{len(formulas) - 1}END'
        for c in nb.cells:
            if c.cell_type == 'markdown': c.source = replace_math(c.source, token)
        body, _ = exporter.from_notebook_node(nb)
        body = re.sub(r'FORMULA(\d+)END', lambda m: formulas[int(m[1])], body)
        body = re.sub(r'(?<=href=")(\w+\.ipynb)', lambda m: page_name(m[1]), body)
        body = re.sub(r'<h(\d)[^>]*>(.*?)</h', lambda m: f'<h{m[1]} id="{slug(html.unescape(re.sub("<.*?>", "", m[2])))}">{m[2]}</h', body)
        (out/page_name(path)).write_text(f'<!doctype html><meta charset="utf-8"><title>{path.stem}</title>'
            f'<style>{QUARTO}</style><link rel="stylesheet" href="styles.css"><body><main>{body}</main></body>', encoding='utf-8')
    return out


@pytest.fixture(scope='module')
def site(tmp_path_factory): return render(ROOT/'nbs', tmp_path_factory.mktemp('site'))


def test_pages(site): assert problems(site, sorted(ROOT.glob('nbs/[!_]*.ipynb'))) == []


BROKEN = {'a missing page': ('', 'one.html: missing, the page of 01_one.ipynb'),
          'a link': ('<a href="gone.html">x</a>', 'broken link'), 'an anchor': ('<a href="#gone">x</a>', 'no such anchor'),
          'an anchor elsewhere': ('<a href="./index.html#gone">x</a>', 'no such anchor'),
          'a link with the whole address': ('<a href="https://host/base/gone.html#x">x</a>', 'broken link'),
          'an image': ('<img src="gone.png" alt="x">', 'missing file'), 'an image without words': ('<img src="data:image/png;base64,x">', 'no alt text'),
          'a style sheet': ('<link rel="stylesheet" href="gone.css">', 'missing file'),
          'dollars': ('<p>so $x_<em>1 + y</em>$ is</p>', 'raw TeX'), 'a command': ('<td>\\alpha</td>', 'raw TeX'),
          'a traceback': ('<pre>Traceback (most recent call last)</pre>', 'an error'),
          "Quarto's error": ('<div class="cell-output cell-output-error"></div>', 'an error'),
          'an entry of a special method': ('<h3 id="a.__repr__">x</h3>', 'an API entry')}
FINE = '''<h2 id="here">x</h2><a href="#here"></a><a href="fine.html#here"></a><a href="."></a><a href="https://host/base/fine.html#method"></a>
<a href="https://elsewhere/gone"></a><a href="mailto:a@b"></a><a href=""></a><a href="#"></a><img src="data:image/png;base64,x" alt="x">
<span class="math inline">\\(\\alpha <span>$x$</span>\\)</span> <code>$x$</code> <script>"$x$"</script> $5 and $6'''


@pytest.mark.parametrize('fault', BROKEN)
def test_broken_page_is_caught(tmp_path, fault):
    for name in ('index', 'fine'): (tmp_path/f'{name}.html').write_text(FINE)
    assert problems(tmp_path, ['index.ipynb', '00_fine.ipynb'], 'https://host/base') == []
    body, complaint = BROKEN[fault]
    (tmp_path/'index.html').write_text(FINE + body)
    found = problems(tmp_path, ['index.ipynb', '01_one.ipynb'] if not body else ['index.ipynb'], 'https://host/base')
    assert len(found) >= 1 and all(complaint in f for f in found)


def test_checker_as_a_command(tmp_path):
    r = subprocess.run([sys.executable, ROOT/'tools'/'check_site.py', tmp_path], capture_output=True, text=True)
    assert r.returncode == 1 and 'fields.html: missing' in r.stdout


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    page = tmp_path_factory.mktemp('page')/'a.html'
    page.write_text('<p id="a"></p><script>a.textContent = 6*7</script>')
    if not check_site.browser() or '>42<' not in check_site.open_page(page):  # one in a sandbox may not reach the temporary folder
        pytest.skip(f"no browser: none of {', '.join(check_site.BROWSERS)} is installed and opens a page of the temporary folder")


def test_fits_a_phone(site, browser): assert too_wide(site) == []


def test_wide_page_is_caught(tmp_path, browser):
    style = (ROOT/'nbs'/'styles.css').read_text()
    page = lambda css: f'<style>body {{margin: 0}} {css}</style><main><ul><li>see <code>{"harmformer_train/"*9}</code></li></ul></main>'
    (tmp_path/'a.html').write_text(page(style))
    (tmp_path/'b.html').write_text(page(''))
    assert [f.split(':')[0] for f in too_wide(tmp_path)] == ['b.html']


def test_links_made_by_script(tmp_path, browser):
    "The script that the site includes, on what Quarto writes."
    source = 'https://github.com/harmformer/harmformer/blob/main/nbs/00_fields.ipynb'
    (tmp_path/'a.html').write_text((ROOT/'nbs'/'links.html').read_text() + '<div class="toc-actions"><ul>'
        f'<li><a class="toc-action" href="{source}">View source</a></li><li><a href="https://github.dev/x/blob/y.ipynb">Edit</a></li></ul></div>')
    dom = check_site.open_page(tmp_path/'a.html')
    assert re.findall(r'href="(https://colab[^"]+)', dom) == ['https://colab.research.google.com/github/' + source[len('https://github.com/'):]]
    assert '%pip install -q ./harmformer' in dom


def test_own_address(tmp_path):
    "A fork's site links the fork: nbdev reads settings.ini, the front page names the repository to clone."
    (tmp_path/'nbs').mkdir()
    for f in ('settings.ini', 'nbs/index.ipynb'): shutil.copy(ROOT/f, tmp_path/f)
    set_addresses(tmp_path, 'https://github.com/ann/fork', 'https://ann.github.io/fork/')
    ini = ConfigParser(delimiters=['='])
    ini.read(tmp_path/'settings.ini', encoding='utf-8')
    got = {k: ini['DEFAULT'][k] for k in ('user', 'repo', 'git_url', 'doc_host', 'doc_baseurl', 'lib_name')}
    assert list(got.values()) == ['ann', 'fork', 'https://github.com/ann/fork', 'https://ann.github.io', '/fork', 'harmformer']
    front = ''.join(''.join(c['source']) for c in json.loads((tmp_path/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells'])
    assert 'git clone https://github.com/ann/fork' in front and 'github.com/harmformer' not in front


def test_search_finds_a_name_first():
    index = [dict(href='conv.html#why', title='Conv', section='Why', text='rotate_field'), dict(href='fields.html#a', title='Fields', section='A', text='')]
    records = with_names(index, exported(ROOT))
    assert [r['href'] for r in records if 'rotate_field' in r['section'] + r['text']] == ['fields.html#rotate_field', 'conv.html#why']
    assert with_names(records, exported(ROOT)) == records  # twice is once
