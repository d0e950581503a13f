"""Docments as docstrings: `help(f)` and `f?` say what every argument means."""

__all__ = ['document']

import ast, sys
from pathlib import Path


def _comment(lines, row):
    "The comment at the end of a line, after a colon; or ''."
    comment = lines[row - 1].partition(' # ')[2].strip()
    return comment and ': ' + comment


def _kind(arg): return ast.unparse(arg.annotation) if arg.annotation else ''


def _argument(arg, default, stars=''):
    "An argument as `name (type = default)`."
    kind = _kind(arg)
    more = kind if default is None else f'{kind} = {ast.unparse(default)}'.strip()
    return stars + arg.arg + (f' ({more})' if more else '')


def _arguments(f, lines):
    "The arguments of each line of a signature, and the comment there."
    a, rows = f.args, {}
    plain = [*a.posonlyargs, *a.args]
    every = [*zip(plain, [None]*(len(plain) - len(a.defaults)) + a.defaults, ['']*len(plain)), (a.vararg, None, '*'),
             *zip(a.kwonlyargs, a.kw_defaults, ['']*len(a.kwonlyargs)), (a.kwarg, None, '**')]
    for arg, default, stars in every:
        if arg and arg.arg not in ('self', 'cls'): rows.setdefault(arg.lineno, []).append(_argument(arg, default, stars))
    result = f.returns.lineno if f.returns else f.lineno     # its comment is about what comes back
    return ['    ' + ', '.join(args) + (_comment(lines, row) if row != result else '') for row, args in rows.items()]


def _init(node, classes):
    "The `__init__` of a class, or of its base, if that is one of `classes`, {name: definition}."
    own = next((o for o in node.body if isinstance(o, ast.FunctionDef) and o.name == '__init__'), None)
    bases = [classes[o.id] for o in node.bases if isinstance(o, ast.Name) and o.id in classes]
    return own or (_init(bases[0], classes) if bases else None)


def _docs(node, lines, classes):
    "What to add to the docstring of a function or class."
    if isinstance(node, ast.ClassDef): node = _init(node, classes)
    if node is None or not (args := _arguments(node, lines)): return ''
    back = f'\n\nReturns:\n    {ast.unparse(node.returns)}{_comment(lines, node.returns.lineno)}' if node.returns else ''
    return '\n\nArgs:\n' + '\n'.join(args) + back


def _object(module, node):
    "What a top-level definition made: a name of the module, or with fastcore's `patch` a method of a class."
    patched = isinstance(node, ast.FunctionDef) and any(isinstance(o, ast.Name) and o.id == 'patch' for o in node.decorator_list)
    return getattr(getattr(module, _kind(node.args.args[0])) if patched else module, node.name)


def document(
    *names:str,  # of modules that have been imported
):
    "Add to the docstrings of modules what the comments beside the arguments of their functions and classes say"
    for module in map(sys.modules.get, names):
        if not (file := getattr(module, '__file__', None)): continue   # a notebook
        source = Path(file).read_text(encoding='utf-8')
        nodes = ast.parse(source).body
        classes = {o.name: o for o in nodes if isinstance(o, ast.ClassDef)}
        for node in nodes:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith('_'): continue
            obj = _object(module, node)
            if obj.__doc__ and 'Args:' not in obj.__doc__: obj.__doc__ += _docs(node, source.splitlines(), classes)
