"""The site as a reader meets it. Quarto builds the real one; here nbconvert renders the notebooks as they are stored,
`tools/check_site.py` looks at notebooks and pages, and a browser measures them where there is one."""
import base64, html, io, json, re, shutil, subprocess, sys
import xml.etree.ElementTree as ET
from configparser import ConfigParser
from pathlib import Path

import nbformat, pytest
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbdev.doclinks import _nbpath2html
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT/'tools'))
import check_site
from check_site import page_name, problems, source_problems, too_wide
from index_names import exported, with_names
from own_address import set_addresses

NOTEBOOKS = sorted(ROOT.glob('nbs/[!_]*.ipynb'))
# As pandoc finds them: code first, then formulas; one in single dollars touches both and does not run over an empty line.
CODE_OR_MATH = re.compile(r'(?P<code>(?P<ticks>`+).+?(?P=ticks)|\n\s*\n(?: {4}[^\n]*\n?)+)|\$\$(?P<display>.+?)\$\$'
                          r'|(?<!\\)\$(?P<inline>(?=\S)(?:(?!\n\s*\n)[^$\\]|\\.)+?(?<=\S))\$(?!\d)', re.S)
ARITY = dict(mfrac=2, mroot=2, msub=2, msup=2, munder=2, mover=2, msubsup=3, munderover=3)
# What Quarto's own style sheet does about width: blocks of code wrap, outputs and formulas scroll, inline code in a list does neither.
QUARTO = ('body {margin: 0} main {padding: 0 1em} .highlight pre {white-space: pre-wrap; overflow-wrap: anywhere} pre {overflow-x: auto}'
          'math {display: block math; overflow-x: auto; max-width: 100%} li > code {white-space: pre}')


def mathml(tex, display):
    "The formula as MathML; None if it is not sound. latex2mathml alone forgives braces and unknown commands."
    braces = re.sub(r'\\.|[^{}]', '', tex)
    while '{}' in braces: braces = braces.replace('{}', '')
    try:
        out = convert(re.sub(r'\\arg\b', r'\\operatorname{arg}', tex), display='block' if display else 'inline')  # the one that it lacks
        nodes = list(ET.fromstring(out).iter())
    except Exception: return None
    unknown = any(len(e.text or '') > 1 and e.text[0] == '\\' for e in nodes)
    missing = any(len(e) != ARITY.get(e.tag.split('}')[-1], len(e)) for e in nodes)
    return None if braces or unknown or missing else out


def with_formulas(source, made):
    "Markdown with a word in place of each sound formula, whose MathML is appended to `made`."
    def one(m):
        tex = re.sub(r'\n>\s?', '\n', m['display'] or m['inline'] or '')  # a formula in a blockquote
        if m['code'] or not (formula := mathml(tex, bool(m['display']))): return m[0]
        made.append(formula)
        return f'FORMULA{len(made) - 1}END'
    return CODE_OR_MATH.sub(one, source)


def slug(heading):
    "The anchor that Quarto and GitHub make of a heading."
    return re.sub(r'\s+', '-', re.sub(r'[^\w\s-]', '', html.unescape(re.sub('<.*?>', '', heading)).lower()).strip())


def render(nbs, out):
    "The notebooks of `nbs` as pages in `out`: formulas as MathML, links and anchors as on the site."
    exporter = HTMLExporter(template_name='basic', exclude_anchor_links=True, filters={'clean_html': lambda s: s})  # half the time
    for d in ('images', 'demo', 'styles.css'):
        if (nbs/d).is_dir(): shutil.copytree(nbs/d, out/d, dirs_exist_ok=True)
        elif (nbs/d).exists(): shutil.copy(nbs/d, out/d)
    for path in sorted(nbs.glob('[!_]*.ipynb')):
        nb, formulas = nbformat.read(path, as_version=4), []
        for c in nb.cells:
            if c.cell_type == 'markdown': c.source = with_formulas(c.source, formulas)
        body, _ = exporter.from_notebook_node(nb)
        body = re.sub(r'FORMULA(\d+)END', lambda m: formulas[int(m[1])], body)
        body = re.sub(r'(?<=href=")(\w+\.ipynb)', lambda m: page_name(m[1]), body)
        body = re.sub(r'<h(\d)[^>]*>(.*?)</h', lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h', body)
        (out/page_name(path)).write_text(f'<!doctype html><meta charset="utf-8"><title>{path.stem}</title>'
            f'<style>{QUARTO}</style><link rel="stylesheet" href="styles.css"><body><main>{body}</main></body>', encoding='utf-8')
    return out


@pytest.fixture(scope='module')
def site(tmp_path_factory): return render(ROOT/'nbs', tmp_path_factory.mktemp('site'))


def test_notebooks(): assert source_problems(ROOT/'nbs') == []


def test_pages(site):
    assert problems(site, NOTEBOOKS) == []
    assert [page_name(p) for p in NOTEBOOKS] == [_nbpath2html(p).name for p in NOTEBOOKS]  # as nbdev has it


@pytest.mark.parametrize('text, code, complaint', [
    ('![what is seen](a.png)', '', 'loses its alt text'), ('as in `02_conv`', '', '02_conv is not a link'),
    ('> the lemma of 02_conv', '', '02_conv is not a link'), ('', 'x = 1' + ' '*90 + '# far', 'columns wrap'),
    ('', '#| export\n@patch\ndef __repr__(self:A): return 1', '__repr__ gets an API entry')])
def test_fault_in_a_notebook_is_caught(tmp_path, make_nb, text, code, complaint):
    make_nb('00_good', '#| hide\n' + 'x'*99, '#| export\nclass A:\n    def __repr__(self): return 1', '#| fig-alt: "' + 'x'*90 + '"\n1',
            title='# A\n\n> B\n\n![seen](a.png) <!-- -->\n\nIn [02_conv](02_conv.ipynb), ![a](a.png)\n\n```\n02_conv\n```')
    assert source_problems(tmp_path/'nbs') == []
    make_nb('01_bad', code, title=f'# A\n\n> B\n\n{text}')
    found = source_problems(tmp_path/'nbs')
    assert len(found) == 1 and complaint in found[0]


def test_old_and_heavy_figures_are_caught(make_nb):
    png = io.BytesIO()
    Image.new('L', (9, 9)).save(png, 'png', dpi=(80, 80))
    def found(*codes, data=base64.b64encode(png.getvalue()).decode(), **metadata):
        path = make_nb('00_a', *codes)
        nb = nbformat.read(path, 4)
        nb.cells[-1].outputs = [nbformat.v4.new_output('display_data', {'image/png': data}, metadata={'image/png': metadata})]
        nbformat.write(nb, path)
        return source_problems(path.parent)
    assert found('x = 1') == found('%load_ext harmformer.figures', width=4) == []
    assert 'is not sharp' in found('%load_ext harmformer.figures', 'x = 1')[0]
    assert '600 KB' in found('x = 1', data='A'*600_000)[0]


FINE = r'''# A

## In between

[a](#in-between) [b](00_fine.ipynb#in-between) ![c](data:image/png;base64,x) `[d](gone)` `$\no$`, $5 and $6, $\frac{a}{b}_{\{c\}}$

> $$a
> b$$

<a href="https://host/base/fine.html#method"></a> <a href="https://elsewhere/gone"></a> <a href="mailto:a@b"></a> <a href=""></a> <script>"$x$"</script>'''


@pytest.mark.parametrize('text, complaint', [
    *[(tex, 'raw TeX') for tex in (r'$\frac{a}{b$', r'$\frac{a}$', r'$\alpah$', '$a & b$', 'so $x_1 + y', r'then \alpha is')],
    *[(to, 'broken link') for to in ('[a](02_gone.ipynb)', '<a href="https://host/base/gone.html#x">x</a>')],
    *[(to, 'no such anchor') for to in ('[a](#gone)', '[a](00_fine.ipynb#gone)')],
    *[(to, 'missing file') for to in ('![a](gone.png)', '<link rel="stylesheet" href="gone.css">')], ('![](data:image/png;base64,x)', 'no alt text'),
    ('    Traceback (most recent call last)', 'an error'), ('<div class="cell-output cell-output-error"></div>', 'an error'),
    ('<i id="a.__repr__">x</i>', 'an API entry')])
def test_fault_on_a_page_is_caught(tmp_path, make_nb, text, complaint):
    (out := tmp_path/'site').mkdir()
    (out/'styles.css').touch()
    make_nb('00_fine', title=FINE)
    assert problems(render(tmp_path/'nbs', out), ['00_fine.ipynb'], 'https://host/base') == []
    make_nb('01_bad', title=f'Words\n\n{text}')
    found = problems(render(tmp_path/'nbs', out), ['01_bad.ipynb'], 'https://host/base')
    assert found and all(f'bad.html: {complaint}' in f for f in found)


def test_links_of_markdown_files():
    files = {p.name: re.findall(r'\]\(([^):#\s]+)[)#]', p.read_text(encoding='utf-8')) for p in ROOT.glob('*.md')}
    assert files['README.md'] and [(f, to) for f, links in files.items() for to in links if not (ROOT/to).exists()] == []


def test_checker_as_a_command(tmp_path):
    r = subprocess.run([sys.executable, ROOT/'tools'/'check_site.py', tmp_path], capture_output=True, text=True)
    assert r.returncode == 1 and 'fields.html: missing' in r.stdout


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    page = tmp_path_factory.mktemp('page')/'a.html'
    page.write_text('<p id="a"></p><script>a.textContent = 6*7</script>')
    if not check_site.browser() or '>42<' not in check_site.open_page(page):  # one in a sandbox may not reach the temporary folder
        pytest.skip(f"no browser: none of {', '.join(check_site.BROWSERS)} is installed and opens a page of the temporary folder")


def test_fits_a_phone(site, browser):
    (site/'bare.html').write_text(f'<style>{QUARTO}</style><main><ul><li>see <code>{"harmformer_train/"*9}</code></li></ul></main>')  # without ours
    assert [f.split(':')[0] for f in too_wide(site)] == ['bare.html']


def test_own_address(tmp_path):
    "A fork's site links the fork: nbdev reads settings.ini, the front page names the repository to clone."
    (tmp_path/'nbs').mkdir()
    for f in ('settings.ini', 'nbs/index.ipynb'): shutil.copy(ROOT/f, tmp_path/f)
    set_addresses(tmp_path, 'https://github.com/ann/fork', 'https://ann.github.io/fork/')
    ini = ConfigParser(delimiters=['='])
    ini.read(tmp_path/'settings.ini', encoding='utf-8')
    got = [ini['DEFAULT'][k] for k in ('user', 'repo', 'git_url', 'doc_host', 'doc_baseurl', 'lib_name')]
    assert got == ['ann', 'fork', 'https://github.com/ann/fork', 'https://ann.github.io', '/fork', 'harmformer']
    front = ''.join(''.join(c['source']) for c in json.loads((tmp_path/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells'])
    assert 'git clone https://github.com/ann/fork' in front and 'github.com/harmformer' not in front


def test_search_finds_a_name_first():
    index = [dict(href='conv.html#why', title='Conv', section='Why', text='rotate_field'), dict(href='fields.html#a', title='Fields', section='A', text='')]
    records = with_names(index, exported(ROOT))
    assert [r['href'] for r in records if 'rotate_field' in r['section'] + r['text']] == ['fields.html#rotate_field', 'conv.html#why']
    assert with_names(records, exported(ROOT)) == records  # twice is once
