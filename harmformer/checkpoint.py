"""What a run needs to go on: its whole state in one file, from which the log and the best weights are derived."""

__all__ = ['STATE', 'Checkpoint', 'read_state']

import signal, time, warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any
import pandas as pd, torch, torch.distributed as dist
with warnings.catch_warnings():  # fastai still asks for torch.jit.script, while it is imported
    warnings.simplefilter('ignore', FutureWarning)
    from fastai.callback.core import Callback, CancelFitException  # pyright: ignore (fastai makes it at run time)
    from fastai.callback.tracker import ReduceLROnPlateau
    from fastai.torch_core import get_model, num_distrib, rank_distrib
from harmformer.system import not_finite, read_tensors, remove_parts, write_tensors, write_whole

STATE = 'checkpoint.safetensors'


def _below(name, tensors): return {f'{name}/{k}': v for k, v in tensors.items()}
def _of(name, tensors): return {k[len(name)+1:]: v for k, v in tensors.items() if k.startswith(f'{name}/')}


def read_state(folder):
    "The state of the run in `folder` as (header, tensors), or None if it has none yet"
    file, old = Path(folder)/STATE, Path(folder)/'checkpoint.pt'
    if file.exists(): return read_tensors(file)
    if old.exists(): raise ValueError(f'{old} is of version 0.1.0: finish that run with 0.1.0, or start a new one')


def _split_optimizer(opt):
    "The state of an optimizer as (what JSON can hold, tensors)"
    s = opt.state_dict()
    return s['param_groups'], {f'{i}/{k}': v for i, o in s['state'].items() for k, v in o.items()}


def _join_optimizer(opt, groups, tensors):
    state = {}
    for k, v in tensors.items():
        i, name = k.split('/')
        state.setdefault(int(i), {})[name] = v
    opt.load_state_dict(dict(state=state, param_groups=groups))


class Checkpoint(Callback):
    "Write the state of a run after every epoch and at regular intervals, and then what is derived from it: log.csv and best.safetensors"
    order = 100
    learn:Any                 # fastai says None, and sets it
    def __init__(self,
        path,                 # folder of the run
        plan:dict,            # what may not change when it is resumed, `seed` among it
        every:float=60.,      # seconds between states within an epoch
        provenance:dict=None, # goes into the header of the best weights
    ):
        self.path, self.plan, self.every, self.provenance = Path(path), plan, every, provenance or {}
        self.state:Any = None                       # (header, tensors) of a run that is resumed
        self.best:Any = None                        # ({score, header}, weights)
        self.seconds, self.stop, self.stopped = 0., False, False

    def before_fit(self):
        self.saved = self.began = time.time()
        if not rank_distrib(): remove_parts(self.path)
        if self.state: self._go_on()

    def before_epoch(self): self.dls.train.set_epoch(self.epoch)

    def before_train(self):
        if self.first_batch: self.learn.pct_train = self.state[0]['pct_train']

    def before_batch(self):
        "What is random in a batch depends on nothing before it"
        if self.training: torch.manual_seed(((self.plan['seed']*100_003 + self.epoch)*100_003 + self.iter)*1009 + rank_distrib())

    def after_batch(self):
        if num_distrib() > 1:                       # all stop, or none
            dist.all_reduce(asked := torch.tensor(int(self.stop), device=self.x.device))
            self.stop = bool(asked)
        if self.stop or (self.training and time.time() - self.saved > self.every):
            self.save(self.epoch, self.iter+1 if self.training else len(self.dls.train))
        if self.stop:
            self.stopped = True
            raise CancelFitException

    def after_epoch(self):
        if rank_distrib(): return                   # the first process writes
        row = dict(zip(self.recorder.metric_names[1:], self.recorder.values[-1]))
        score = next((row[k] for k in (getattr(self.dls, 'chosen_by', 'auc'), 'auc', 'turned', 'accuracy') if k in row), -row['valid_loss'])
        better = self.best is None or score > self.best[0]['score']
        if better: self.best = self._candidate(score, row)
        self.save(self.epoch+1, 0)
        self.derive(better)

    def _plateau(self)->Any: return self.learn.cbs.filter(lambda o: isinstance(o, ReduceLROnPlateau))
    def _weights(self): return {k: v.detach().cpu().clone() for k, v in get_model(self.learn.model).state_dict().items()}

    def _candidate(self, score, row):
        "What best.safetensors will hold: its score and header, and the weights"
        images = (self.epoch+1) * len(self.dls.train) * self.dls.train.bs * max(1, num_distrib())
        spent = dict(images_seen=images, seconds=self.seconds + time.time() - self.began)       # with those of an earlier stage
        spent = {k: round(self.provenance.get(k, 0) + v) for k, v in spent.items()}
        config = get_model(self.learn.model).config
        stage = dict(epochs=self.epoch+1, images_seen=images, **{k: config[k] for k in ('upscale', 'kernel_size') if k in config})
        known = {**self.provenance, **spent, 'epochs': self.epoch+1, 'stages': [*self.provenance.get('stages', []), stage]}
        header = dict(config=config, **{**known, **row})
        return dict(score=float(score), header=header), self._weights()

    def save(self, epoch:int, done:int):
        "Write the state: `done` batches of `epoch` are done"
        if rank_distrib(): return
        r, weights, (groups, moments) = self.recorder, self._weights(), _split_optimizer(self.opt.opt)
        if not_finite(weights):
            raise FloatingPointError('the training diverged: weights are no longer finite. Choose a smaller learning rate')
        plateau = [(float(cb.best), cb.wait) for cb in self._plateau()]
        best, best_weights = self.best or (None, {})
        header = dict(plan=self.plan, epoch=epoch, done=done, pct_train=self.pct_train, train_iter=self.train_iter, best=best,
                      seconds=self.seconds + time.time() - self.began, names=list(r.metric_names[1:]), optimizer=groups, plateau=plateau,
                      values=[list(map(float, v)) for v in r.values], iters=list(map(int, r.iters)), smooth=r.smooth_loss.count)
        series = dict(losses=torch.tensor([float(o) for o in r.losses]), lrs=torch.tensor(r.lrs, dtype=torch.float64),
                      smooth=torch.as_tensor(r.smooth_loss.val))
        parts = dict(model=weights, opt=moments, best=best_weights, log=series)
        write_tensors(self.path/STATE, {k: v for name, o in parts.items() for k, v in _below(name, o).items()}, header)
        self.saved = time.time()

    def derive(self, better=True):
        "Write log.csv and, if they are new, the best weights: everything in them is in the state too"
        if self.best and better: write_tensors(self.path/'best.safetensors', self.best[1], self.best[0]['header'])
        values = [list(map(float, v)) for v in self.recorder.values]
        if not values: return
        log = pd.DataFrame(values, columns=list(self.recorder.metric_names[1:len(values[0])+1]))
        write_whole(self.path/'log.csv', log.to_csv(index_label='epoch', lineterminator='\n'))

    def load(self, learn, state):
        "Give `learn` what a state holds: weights, optimizer, and where to start"
        header, tensors = self.state = state
        if header['plan'] != self.plan:
            raise ValueError(f'{self.path} was started with other settings: give the same ones, or start a new run without resuming')
        learn.model.to(learn.dls.device).load_state_dict(_of('model', tensors))
        learn.create_opt()
        _join_optimizer(learn.opt.opt, header['optimizer'], _of('opt', tensors))
        learn.first_epoch, learn.first_batch, self.seconds = header['epoch'], header['done'], header['seconds']
        if header['best']: self.best = header['best'], _of('best', tensors)

    def _go_on(self):
        "Put log, progress bar and plateau back to where the run was"
        (s, tensors), r = self.state, self.recorder
        if bar := getattr(getattr(self.learn, 'progress', None), 'mbar', None):
            bar.main_bar.first_its = self.n_epoch   # epochs that took no time would make it expect more of them, and wait
            bar.update(0)                           # it has to start before it can be further
        log = _of('log', tensors)
        r.values, r.iters, r.losses, r.lrs = list(s['values']), list(s['iters']), list(log['losses']), log['lrs'].tolist()
        r.smooth_loss.val, r.smooth_loss.count, self.learn.train_iter = log['smooth'], s['smooth'], s['train_iter']
        for cb in self._plateau(): cb.best, cb.wait = s['plateau'][0]
        if not rank_distrib(): self.derive()

    @contextmanager
    def polite(self):
        "Within: the first Ctrl-C sets `stop`, which ends the run after this batch; the second interrupts"
        def ask(*_):
            self.stop = True
            if num_distrib() < 2: signal.signal(signal.SIGINT, before)   # launchers pass a Ctrl-C on a second time
        try: before = signal.signal(signal.SIGINT, ask)
        except ValueError: before = None                # not in the main thread
        try: yield
        finally:
            if before is not None: signal.signal(signal.SIGINT, before)
