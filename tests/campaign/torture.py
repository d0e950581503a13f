"""The campaign against the library: random calls, damaged files and kills, for so many minutes; one table at the end.

    python3 run.py torture --minutes 30

Trials run in a process of their own: if it dies or hangs, that is a crash, and the next process goes on after it."""
import argparse, itertools, json, os, random, select, signal, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = 'right', 'clear error', 'unclear', 'silent wrong', 'crash'


def work(kind, first):
    "Try one seed after the other, and say how each ended (until this process is ended)"
    sys.path.insert(0, str(HERE))
    import torch, trials, warnings
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    f = dict(calls=trials.call_model, files=trials.damage_file)[kind]
    print('ready', flush=True)                               # to import everything takes its time
    for seed in itertools.count(first):
        how, what = f(random.Random(f'{kind} {seed}'))
        print(json.dumps([seed, how, what]), flush=True)


def trial_lines(kind, seconds, patience=60):
    "(outcome, what) of one trial after the other, for so long; a process that dies or says nothing for a minute has crashed"
    seed, end = 0, None
    while end is None or time.time() < end:
        p = subprocess.Popen([sys.executable, '-W', 'ignore', __file__, '--work', kind, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if p.stdout.readline() != 'ready\n': raise RuntimeError(f'{kind}: the trials do not start')
        end, allowed = end or time.time() + seconds, time.time() + patience
        try:
            while time.time() < end:
                ready, _, _ = select.select([p.stdout], [], [], max(0, min(end, allowed) - time.time()))
                line = p.stdout.readline() if ready else ''
                if not line and time.time() >= end: return
                if not line:
                    yield 'crash', f'{kind} {seed}: the process ' + ('hangs' if p.poll() is None else f'ended with {p.returncode}')
                    seed += 1
                    break
                at, how, what = json.loads(line)
                seed, allowed = at + 1, time.time() + patience
                yield how, f'{kind} {at}: {what}'
        finally: p.kill(); p.wait()


def kills(seconds):
    "(outcome, what) of kills, plan after plan"
    end = time.time() + seconds
    for plan in ('every batch', 'Ctrl-C', 'every epoch', 'one epoch', 'twice'):
        left = int(end - time.time())
        if left < 20: return
        out = subprocess.run([sys.executable, '-W', 'ignore', HERE/'kills.py', plan, '0', '1000000', str(left)], capture_output=True, text=True)
        if out.returncode:
            yield 'crash', f'kills, {plan}: {out.stderr[-500:]}'
            continue
        found = json.loads(out.stdout.splitlines()[-1])
        yield from [('right', '')]*(found['kills'] - len(found['wrong']))
        for at in found['wrong']: yield 'silent wrong', f'kills, {plan}: killed at {at} it ended differently'


def table(counts):
    rows = [('', 'tried', *COLUMNS)] + [(k, str(sum(c.values())), *[str(c.get(o, 0)) for o in COLUMNS]) for k, c in counts.items()]
    return '\n'.join('  '.join(f'{o:>12}' for o in r) for r in rows)


def main(minutes):
    sources = dict(calls=lambda: trial_lines('calls', minutes*60*.5), files=lambda: trial_lines('files', minutes*60*.1), kills=lambda: kills(minutes*60*.4))
    counts, bad = {k: {} for k in sources}, []
    for kind, make in sources.items():
        for how, what in make():
            counts[kind][how] = counts[kind].get(how, 0) + 1
            if how in COLUMNS[2:]: bad.append(f'{how}: {what}')
    for line in bad[:200]: print(line)
    print(table(counts))
    return len(bad) > 0 or not all(counts.values())    # what was not tried has not held


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--minutes', type=float, default=30)
    parser.add_argument('--work', nargs=2)
    args = parser.parse_args()
    if args.work: work(args.work[0], int(args.work[1]))
    else: sys.exit(main(args.minutes))
