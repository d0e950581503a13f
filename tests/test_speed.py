"""`benchmarks/speed.py --check` fails when a ratio has fallen by more than a tenth, and only then."""
import csv, sys
from pathlib import Path
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent/'benchmarks'))
import speed  # noqa: E402


def measured(factor, form):
    "The stored rows, with the ratios of one form changed"
    rows = list(csv.DictReader((speed.OUT/'speed_steps.csv').open()))
    return [{**r, 'ratio': float(r['ratio'])*(factor if r['form'] == form else 1)} for r in rows if r['form'] != 'direct']


@pytest.mark.parametrize('factor, code', [(1., 0), (.92, 0), (.88, 1), (2., 0)])
@pytest.mark.parametrize('form', ['eager', 'compiled'])
def test_check(monkeypatch, capsys, factor, form, code):
    monkeypatch.setattr(speed, 'step_rows', lambda *_, **__: measured(factor, form))
    monkeypatch.setattr(speed.torch, 'set_num_threads', lambda n: None)
    monkeypatch.setattr(speed, 'reuse_memory', lambda: None)
    threads = int(measured(1, form)[0]['threads'])
    with pytest.raises(SystemExit, match=f'--threads {threads}'): speed.main(check=True, threads=threads + 1)
    with pytest.raises(SystemExit) as e: speed.main(check=True, threads=threads)
    assert e.value.code == code and ('FALLEN' in capsys.readouterr().out) == bool(code)


def test_every_case_is_stored():
    rows = list(csv.DictReader((speed.OUT/'speed_steps.csv').open()))
    stored = {(r['model'], r['mode'], int(r['batch']), r['form']) for r in rows}
    assert {(*c, f) for c in speed.CASES for f in ('old', 'eager', 'compiled')} <= stored
    assert all(float(r['gflop']) == pytest.approx(speed.product_flops(r['model'], r['mode'], int(r['batch']))/1e9, abs=.01) for r in rows[::4])
