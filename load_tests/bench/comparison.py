"""This service and its peers in turns: first each setting once, then the best of each in rounds."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from load_tests.bench import environments, job, processes, wrk
from load_tests.bench.contenders import MODEL, PEER_LIST, PEERS, SERVICE, Contender, Setting
from load_tests.bench.environments import NotInstalled
from load_tests.bench.job import FORMATS, Format, WrongAnswer
from load_tests.bench.others import watching
from load_tests.bench.processes import Server, StartFailed
from load_tests.bench.records import Sample, Trial
from load_tests.bench.wrk import RunFailed

TIME_MODEL = PEERS / "time_model.py"
MANY, ONE = 64, 1
WARM_UP = 1
SOONER = 0.9
"""A setting is used for one connection alone where it takes less than this part of the other's time."""

Say = Callable[[str], None]
Failures = (StartFailed, RunFailed, WrongAnswer, OSError)


class Comparison:
    """Runs it; its attributes are what it found. This service must not fail, a peer that does is dropped and named."""

    def __init__(self, say: Say, *, rounds: int, seconds: int) -> None:
        self.say = say
        self.rounds = rounds
        self.seconds = seconds
        self.trials: list[Trial] = []
        self.samples: list[Sample] = []
        self.chosen: dict[str, dict[int, Setting]] = {}
        self.errors: defaultdict[str, float] = defaultdict(float)
        self.resident: dict[str, int] = {}
        self.model_us: dict[str, list[float]] = {}
        self.absent: dict[str, str] = {}

    def prepare(self, peers: Sequence[Contender] = PEER_LIST) -> list[Contender]:
        """This service and the peers that could be installed."""
        job.write_model(MODEL)
        ready = [SERVICE]
        for peer in peers:
            self.say(f"{peer.name} {environments.version(peer.package)}: its environment")
            try:
                environments.install(peer.package)
            except NotInstalled as error:
                self._drop(peer, f"could not be installed: {error}")
            else:
                ready.append(peer)
        for contender in ready:
            self.model_us[contender.name] = _time_model(contender)
        return ready

    def choose(self, contenders: Sequence[Contender], *, try_all: bool) -> list[Contender]:
        """Those that have a setting that works. Over many connections it is the one of most requests a second; alone
        the same, unless another answers a good deal sooner. Where not all are tried it is the documentation's."""
        if not try_all:
            self.chosen = {one.name: dict.fromkeys((MANY, ONE), one.settings[0]) for one in contenders}
            return list(contenders)
        for contender in contenders:
            tried = [(self._try(contender, setting), setting) for setting in contender.settings]
            self.trials += [trial for trial, _ in tried]
            if any(trial.many for trial, _ in tried):
                self.chosen[contender.name] = best(tried)
            else:
                self._drop(contender, f"no setting worked: {tried[0][0].failed}")
        return [contender for contender in contenders if contender.name in self.chosen]

    def measure(self, contenders: Sequence[Contender]) -> None:
        """Every other round in the opposite order, so that a drift of the machine does not favour a place in it."""
        left = list(contenders)
        for number in range(self.rounds):
            for contender in left[:: 1 if number % 2 == 0 else -1]:
                try:
                    for sample in self._round(contender, number):
                        self.samples.append(sample)
                        self._tell(sample)
                except Failures as error:
                    self._drop(contender, f"failed in round {number + 1}: {error}")
                    self.samples = [sample for sample in self.samples if sample.contender != contender.name]
                    left.remove(contender)

    def _try(self, contender: Contender, setting: Setting) -> Trial:
        try:
            with contender.running(setting, "binary") as server:
                self._check(contender, server, "binary")
                post = contender.post("binary")
                wrk.load(server.address, post, MANY, WARM_UP)
                many = wrk.load(server.address, post, MANY, max(1, self.seconds - 1))
                one = wrk.load(server.address, post, ONE, max(1, self.seconds - 1))
        except Failures as error:
            self.say(f"{contender.name}, {setting.label}: {error}")
            return Trial(contender=contender.name, setting=setting.label, many=None, one=None, failed=str(error))
        self.say(f"{contender.name}, {setting.label}: {many.per_second:,.0f}/s, alone {one.p50_us / 1e3:.2f} ms")
        return Trial(contender=contender.name, setting=setting.label, many=many, one=one)

    def _round(self, contender: Contender, number: int) -> Iterator[Sample]:
        chosen = self.chosen[contender.name]
        together = chosen[MANY].label == chosen[ONE].label
        for all_connections in [(MANY, ONE)] if together else [(MANY,), (ONE,)]:
            for formats in [FORMATS] if contender.both else [(format,) for format in FORMATS]:
                with contender.running(chosen[all_connections[0]], formats[0]) as server:
                    for format in formats:
                        yield from self._runs(contender, server, format, all_connections, number)

    def _runs(
        self, contender: Contender, server: Server, format: Format, all_connections: Sequence[int], number: int
    ) -> Iterator[Sample]:
        if number == 0:
            self._check(contender, server, format)
        post = contender.post(format)
        wrk.load(server.address, post, all_connections[0], WARM_UP)
        for connections in all_connections:
            with watching(server) as others:
                run = wrk.load(server.address, post, connections, self.seconds)
            yield Sample(
                contender=contender.name,
                format=format,
                connections=connections,
                round=number,
                run=run,
                others=others.value,
            )
        self.resident[contender.name] = max(server.resident_bytes(), self.resident.get(contender.name, 0))

    def _check(self, contender: Contender, server: Server, format: Format) -> None:
        error = job.check(*processes.post(server.address, contender.post(format)))
        self.errors[contender.name] = max(error, self.errors[contender.name])

    def _drop(self, contender: Contender, reason: str) -> None:
        self.say(f"{contender.name} {reason}")
        if contender.ours:
            raise RunFailed(f"{contender.name} {reason}")
        self.absent[contender.name] = reason

    def _tell(self, sample: Sample) -> None:
        run = sample.run
        what = f"{sample.contender}, {sample.format}, {sample.connections} at once"
        figures = f"{run.per_second:,.0f}/s, p50 {run.p50_us / 1e3:.2f} ms, p99 {run.p99_us / 1e3:.2f} ms"
        self.say(f"round {sample.round + 1}/{self.rounds}: {what}: {figures}")


def best(tried: Sequence[tuple[Trial, Setting]]) -> dict[int, Setting]:
    """By number of connections; at least one of the trials must have worked."""
    worked = [
        (trial.many.per_second, trial.one.p50_us, setting) for trial, setting in tried if trial.many and trial.one
    ]
    _, its_own, many = max(worked, key=lambda one: one[0])
    _, soonest, alone = min(worked, key=lambda one: one[1])
    return {MANY: many, ONE: alone if soonest < SOONER * its_own else many}


def _time_model(contender: Contender) -> list[float]:
    """Microseconds of a run of the bare model in its environment, alone and in a batch of 16."""
    command = [contender.python, str(TIME_MODEL), str(MODEL)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [float(word) for word in printed.split()]
