"""Points the links of the site at the repository and the host that build it. The hosted workflow runs it before nbdev_docs.

    python3 tools/own_address.py https://github.com/OWNER/REPO https://OWNER.github.io/REPO

settings.ini gives both addresses to nbdev; the front page has a line to clone the repository. The standard library is enough."""
import re, sys
from pathlib import Path
from urllib.parse import urlsplit


def set_addresses(root, git_url, site_url):
    "Write both addresses into settings.ini and the new repository into the front page."
    git_url, site = git_url.rstrip('/'), urlsplit(site_url.rstrip('/'))
    owner, repo = urlsplit(git_url).path.strip('/').split('/')
    new = {'user': owner, 'repo': repo, 'git_url': git_url, 'doc_host': f'{site.scheme}://{site.netloc}', 'doc_baseurl': site.path or '/'}
    ini = root/'settings.ini'
    text = ini.read_text(encoding='utf-8')
    for key, value in new.items():
        text, found = re.subn(rf'(?m)^{key} *=.*$', lambda _: f'{key} = {value}', text)
        if found != 1: raise ValueError(f'settings.ini needs exactly one line "{key} = ..."; it has {found}.')
    ini.write_text(text, encoding='utf-8')
    front = root/'nbs'/'index.ipynb'
    front.write_text(re.sub(r'git clone https://\S+?(?=[ "\\]|$)', f'git clone {git_url}', front.read_text(encoding='utf-8')), encoding='utf-8')


if __name__ == '__main__':
    if len(sys.argv) != 3: sys.exit(__doc__)
    set_addresses(Path(__file__).parent.parent, *sys.argv[1:])
