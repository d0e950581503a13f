"""A run killed at any moment ends as if it had never been: the short form of `run.py torture`."""
import json, os, subprocess, sys
from pathlib import Path
import pytest

SCRIPT = Path(__file__).with_name('kills.py')


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
@pytest.mark.parametrize('plan', ['every batch'])
def test_killed_anywhere_and_resumed_is_the_same(plan):
    out = subprocess.run([sys.executable, '-W', 'ignore', SCRIPT, plan], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout.splitlines()[-1])
    assert found['wrong'] == [] and found['kills'] >= found['ticks'] > 30, found
