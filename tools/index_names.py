"""Lets the site's search find an exported name before the pages that use it. The hosted workflow runs it after nbdev_docs.

    python3 tools/index_names.py _docs

Quarto's search knows a page's sections of the second level, and the entry of a function is one of the third. This adds
a record to search.json for each exported function and class. The standard library is enough."""
import ast, json, sys
from pathlib import Path


def exported(root):
    "(name, page#anchor, first line of its docstring) of each public function and class in harmformer/_modidx.py."
    index = ast.literal_eval(ast.parse((root/'harmformer'/'_modidx.py').read_text(encoding='utf-8')).body[-1].value)
    for module, syms in index['syms'].items():
        path = root/(module.replace('.', '/') + '.py')
        nodes = ast.parse(path.read_text(encoding='utf-8')).body
        docs = {n.name: ast.get_docstring(n) or '' for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        for full, (where, _) in syms.items():
            name = full[len(module) + 1:]
            if name in docs and name[0] != '_': yield name, where, docs[name].split('\n')[0]


def with_names(records, names):
    "Quarto's `records` behind one record for each of `names` that has its page."
    titles = {r['href'].split('#')[0]: r['title'] for r in records}
    new = {where: dict(objectID=where, href=where, title=titles[page], section=name, text=f'{name}: {doc}')
           for name, where, doc in names if (page := where.split('#')[0]) in titles}
    return [*new.values(), *(r for r in records if r['href'] not in new)]


if __name__ == '__main__':
    if len(sys.argv) != 2: sys.exit(__doc__)
    path, root = Path(sys.argv[1])/'search.json', Path(__file__).parent.parent
    records = with_names(json.loads(path.read_text(encoding='utf-8')), exported(root))
    path.write_text(json.dumps(records, ensure_ascii=False), encoding='utf-8')
