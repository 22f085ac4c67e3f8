"""The stages of `tune`: record, search, judge, tune cuBLASLt, measure, build for other M.

Each leaves what a later call resumes from. Searches are a campaign in the store. Rows of another GPU, driver or PyTorch are
measured again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import KernelLibrary, key_of, open_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.advise.advice import Advice, advise
from cudal2_agent.agent.library.advise.known_kernels import (
    KnownKernels,
    Target,
    autotuning_times,
    chip_of,
    kernels_of,
    latest_searches,
    open_kernels,
)
from cudal2_agent.agent.library.advise.library_times import LibraryTimes
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
from cudal2_agent.agent.library.entry_choice import NOT_FASTER, choose_entries
from cudal2_agent.agent.library.library_building import extend_library
from cudal2_agent.agent.library.measured_kernels import kernels_of_store, origins_in
from cudal2_agent.agent.library.preparing import library_cache, prepare, sms_for
from cudal2_agent.agent.model_tuning.gpu_stages import GpuStages, TimePass, survived
from cudal2_agent.agent.model_tuning.product_choice import entries_for, slower_than_parts, tasks_of, to_search
from cudal2_agent.agent.model_tuning.range_building import asked_ranges
from cudal2_agent.agent.model_tuning.range_stage import measure_ranges
from cudal2_agent.agent.model_tuning.time_limit import TimeLimit
from cudal2_agent.agent.model_tuning.tune_folder import TuneFolder
from cudal2_agent.agent.model_tuning.tune_records import (
    USUAL_WAYS,
    JudgedProduct,
    JudgedRange,
    PassTimes,
    RecordedPass,
    RecordedPasses,
    TuneAnswer,
    TuneRequest,
    Way,
)
from cudal2_agent.agent.model_tuning.tuned_model import TunedModel
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import UsageError, WorkerError
from cudal2_agent.contract.records.library import LibraryEntry, product_words
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import open_store

# Searches tasks, each with its weight, for so many seconds; None for no limit. Under the name of a campaign.
Search = Callable[[str, Mapping[GemmTask, float], float | None], None]


class TuneOptions(NamedTuple):
    """`minutes`: for all; searches leave time for the rest; None for no limit. `measure`: whether a GPU of this machine does.

    `searchers`: GPUs that search, here or elsewhere. `ways`: how the model is run. `tolerance`: how many times PyTorch's own
    error the model may have with the library. `ranges`: whether kernels are measured for M between those of the passes.
    """

    training: bool = False
    minutes: float | None = None
    measure: bool = True
    searchers: int = 1
    ways: tuple[Way, ...] = USUAL_WAYS
    tolerance: float = 1.25
    ranges: bool = True


class TuneDisplay(Protocol):
    """Where the stages say what they do."""

    def stage(self, words: str) -> None: ...
    def judged(self, row: JudgedProduct) -> None: ...
    def ranged(self, entry: LibraryEntry, row: JudgedRange) -> None: ...
    def tuned(self, row: TunedProduct) -> None: ...
    def timed(self, row: PassTimes) -> None: ...
    def note(self, words: str) -> None: ...


class TunePlan(NamedTuple):
    """What is known before a search. `wanted`: what is searched, with the time of its calls. `left`: how many do not fit."""

    advice: Advice
    wanted: Mapping[GemmTask, float]
    left: int


class _LibraryParts(NamedTuple):
    """What the library is written of. `vain`: products searched in vain. `dropped`: ids of entries that are slower here.

    `environment`: of the rows; empty where nothing was measured.
    """

    kept: Sequence[LibraryEntry]
    vain: Sequence[str]
    chip: str
    environment: str = ""
    dropped: frozenset[str] = frozenset()


class Tuning:
    """One call of `tune`. `base`: the library that is extended; None where none ships for the chip."""

    def __init__(
        self,
        model: TunedModel,
        target: Target,
        base: KernelLibrary | None,
        folder: TuneFolder,
        settings: Settings,
        options: TuneOptions,
        display: TuneDisplay,
        stages: Callable[[], GpuStages] = GpuStages,
    ) -> None:
        self._model, self._base, self._folder, self._settings = model, base, folder, settings
        self._options, self._display, self._stages = options, display, stages
        self._time = TimeLimit(options.minutes, options.ways, max(1, len(model.tokens)), ranges=options.ranges)
        self._known = kernels_of(base) if base is not None else _without_entries(open_kernels(None, target.name))
        self._chip = chip_of(target, self._known)
        self._passes = self._recorded(target)
        self._notes: list[str] = []

    def plan(self) -> TunePlan:
        """What would be searched. Nothing is searched or measured."""
        return self._plan(None)

    def run(self, search: Search) -> TuneAnswer:
        """Raises: UsageError, MachineError, WorkerError, LibraryError; KeyboardInterrupt, after which the same call resumes."""
        if not self._options.measure:
            self._note("nothing was measured here: no GPU of this machine takes part")
            searched, left = self._search(search, None)
            entries, vain = self._entries(None)
            self._write_library(_LibraryParts(entries, vain, self._chip.name))
            return self._answer(None, "", searched, left, dropped=0)
        with self._stages() as gpu:
            self._display.stage("looking at the GPU")
            identity, environment = gpu.identity()
            searched, left = self._search(search, identity)
            judged = self._products(gpu, identity, environment)
            self._write_library(judged)
            self._time_model(gpu, environment)
            if self._options.ranges:
                self._ranges(gpu, identity, environment, judged.kept)
                self._write_library(judged)
            return self._answer(identity, environment, searched, left, len(judged.dropped))

    def _recorded(self, target: Target) -> RecordedPasses:
        model = self._model
        request = TuneRequest(
            model=str(model.path),
            sha256=model.sha256,
            tokens=model.tokens,
            training=self._options.training,
            chip=target.name,
        )
        if (known := self._folder.passes(request)) is not None:
            return known
        self._display.stage(f"recording the matrix products of {model.path}")
        passes = tuple(RecordedPass(tokens=count, recording=one) for count, one in model.recordings().items())
        found = RecordedPasses(request=request, passes=passes)
        if not found.merged().products:
            raise UsageError(f"{model.path}: a forward pass has no matrix product")
        self._folder.keep_passes(found)
        return found

    def _plan(self, identity: GpuIdentity | None) -> TunePlan:
        advice = self._advice(_fitting(self._known, identity))
        wanted, left = to_search(advice, self._chip.arch, self._search_s(advice), self._options.searchers)
        return TunePlan(advice, wanted, left)

    def _advice(self, kernels: KnownKernels) -> Advice:
        with open_store(self._settings.store_url) as store:
            searches = latest_searches(kernels_of_store(store), self._chip.name)
        times = LibraryTimes(autotuning_times(searches), self._chip)
        return advise(self._passes.request.model, self._passes.wanted(self._options.ways), kernels, searches, times)

    def _search_s(self, advice: Advice) -> float:
        return self._time.search_s(len(tasks_of(advice, self._chip.arch)))

    def _search(self, search: Search, identity: GpuIdentity | None) -> tuple[int, int]:
        """How many products were searched, and how many were not begun."""
        plan = self._plan(identity)
        if plan.wanted:
            of = len(plan.wanted) + plan.left
            self._display.stage(f"searching kernels for {len(plan.wanted)} of {of} matrix products without one")
            seconds = self._search_s(plan.advice)
            name = f"tune-{digest(self._passes.request.model_dump(mode='json', exclude={'model'}), 12)}"
            search(name, plan.wanted, None if math.isinf(seconds) else max(1.0, seconds))
        return len(plan.wanted), plan.left

    def _tasks(self) -> list[GemmTask]:
        """Those that a kernel may compute, the longest first."""
        return list(tasks_of(self._advice(self._known), self._chip.arch))

    def _entries(self, identity: GpuIdentity | None) -> tuple[list[LibraryEntry], list[str]]:
        """The entries of the model's products that fit the GPU, and the products that were searched in vain."""
        tasks = self._tasks()
        with open_store(self._settings.store_url) as store:
            found = [one for one in kernels_of_store(store) if one.chip == self._chip.name and one.task in tasks]
            found = [one for one in found if _fits(one.row.environment or "", identity)]
            choice = choose_entries(found, lambda kernel: origins_in(store, kernel))
        base = {task: one for task in tasks if (one := _fitting(self._known, identity).find(task)) is not None}
        vain = [product_words(one.task) for one in choice.left_out if one.reason == NOT_FASTER]
        return list(entries_for(tasks, base, choice.entries).values()), vain

    def _products(self, gpu: GpuStages, identity: GpuIdentity, environment: str) -> _LibraryParts:
        """Judges kernels, and tunes cuBLASLt for products without one."""
        entries, vain = self._entries(identity)
        built = self._built(entries, identity.sms)
        waiting = [one for one in built if one.id not in self._folder.judged(environment)]
        if waiting:
            self._display.stage(f"racing {len(waiting)} kernels against PyTorch's own")
        cache = library_cache(self._settings)
        for judged in survived(
            waiting, lambda left: gpu.judged(left, cache), lambda one, why: _lost(one, identity, environment, why)
        ):
            self._folder.keep(judged)
            self._display.judged(judged)
        rows = self._folder.judged(environment)
        unserved = slower_than_parts(rows[one.id] for one in built) | {one.id for one in built if not rows[one.id].served}
        kept = [one for one in built if one.id not in unserved]
        known = {one.task for one in kept} | {row.task for row in self._folder.tuned(environment)}
        rest = [
            task for task in self._tasks() if task not in known and not task.bias and task.activation is None
        ]  # stored algorithms have neither
        if rest:
            self._display.stage(f"trying cuBLASLt's algorithms for {len(rest)} matrix products")
        for tuned in survived(rest, gpu.tuned, lambda task, why: _untuned(task, identity, environment, why)):
            self._folder.keep(tuned)
            self._display.tuned(tuned)
        return _LibraryParts(kept, vain, identity.gpu, environment, unserved)

    def _ranges(self, gpu: GpuStages, identity: GpuIdentity, environment: str, kept: Sequence[LibraryEntry]) -> None:
        """Builds and judges kernels for the M below those of the entries."""
        known = self._folder.ranges(environment)
        asked = [one for one in asked_ranges(kept, self._tasks()) if _floor(known.get(one.entry.id)) != one.floor]
        if asked:
            self._display.stage(f"building, proving and racing {len(asked)} kernels for M between those of the passes")
        measure_ranges(asked, gpu, identity, environment, self._settings, self._keep_range, self._time.ranges_end_s)
        rows = self._folder.ranges(environment)
        if left := sum(_floor(rows.get(one.entry.id)) != one.floor for one in asked):
            self._note(f"smaller M of {left} products were not measured for lack of time; the same command goes on")

    def _keep_range(self, entry: LibraryEntry, row: JudgedRange) -> None:
        self._folder.keep(row)
        self._display.ranged(entry, row)

    def _built(self, entries: Sequence[LibraryEntry], sms: int) -> list[LibraryEntry]:
        """The entries whose kernels are in the cache now; a note for each other one."""
        if entries:
            self._display.stage(f"building {len(entries)} kernels")
        failed = {one.id: one.message for one in prepare(entries, self._settings, sms) if one.status == "failed"}
        for entry in entries:
            if entry.id in failed:
                self._note(f"{entry.task.shape} {entry.task.layout}: its kernel was not built: {failed[entry.id]}")
        return [one for one in entries if one.id not in failed]

    def _write_library(self, judged: _LibraryParts) -> None:
        """With the ranges of M that were found faster so far."""
        ranges = self._folder.ranges(judged.environment) if self._options.ranges else {}
        held = extend_library(
            self._base,
            self._folder.tuned(judged.environment),
            self._folder.library,
            judged.chip,
            entries=judged.kept,
            without=judged.dropped,
            no_faster=judged.vain,
            ranges=[below.m_range for one in judged.kept if (below := ranges.get(one.id)) and below.m_range is not None],
        )
        if held is None:
            self._folder.library.unlink(missing_ok=True)

    def _time_model(self, gpu: GpuStages, environment: str) -> None:
        """A row for each pass that has none of these ways with this library."""
        sha256 = self._folder.library_sha256()
        if sha256 is None:
            return
        if self._model.make is None:
            self._note("a trace holds no model, so that nothing but its products was measured")
            return
        from cudal2_agent.agent.library.torch_kernels import prepare_torch  # it imports torch

        compiled = prepare_torch(self._settings)
        if compiled.status == "failed":
            self._note(str(compiled))
        known = self._folder.times(environment, sha256)
        for one in self._passes.passes:
            if one.tokens in known and known[one.tokens].covers(self._options.ways):
                continue
            words = "" if one.tokens is None else f" of {one.tokens} tokens"
            self._display.stage(f"timing a pass{words} without the library and with it")
            asked = TimePass(
                path=self._model.path,
                every=self._model.tokens,
                tokens=one.tokens,
                training=self._options.training,
                library=self._folder.library,
                library_sha256=sha256,
                ways=self._options.ways,
            )
            row = None
            try:
                for row in gpu.timed(asked):
                    self._folder.keep(row)
            except (UsageError, WorkerError) as exc:
                self._note(f"the model{words} was not measured{'' if row is None else ' in every way'}: {exc}")
            if row is not None:
                self._display.timed(row)

    def _answer(self, identity: GpuIdentity | None, environment: str, searched: int, left: int, dropped: int) -> TuneAnswer:
        sha256 = self._folder.library_sha256()
        held = open_library(self._folder.library) if sha256 else None
        final = _fitting(kernels_of(held) if held else self._known, identity)
        advice = self._advice(final)
        times = tuple(self._folder.times(environment, sha256).values()) if sha256 else ()
        errors = [one for row in times for one in (row.outputs, row.gradients) if one is not None]
        prepared = PreparedKernels(library_cache(self._settings))
        sms = identity.sms if identity is not None else sms_for(self._chip.arch)
        entries = [entry for task in self._tasks() if held is not None and (entry := held.find(key_of(task)))]
        answer = TuneAnswer(
            request=self._passes.request,
            library=str(self._folder.library) if sha256 else None,
            searched=searched,
            left=left,
            tuned=sum(row.faster for row in self._folder.tuned(environment)),
            dropped=dropped,
            ranges=len(held.manifest.ranges) if held is not None else 0,
            advice=advice,
            times=times,
            tolerance=self._options.tolerance,
            within=all(one.within(self._options.tolerance) for one in errors),
            disk_bytes=self._folder.disk_bytes(
                file for entry in entries for file in (prepared.cubin_path(entry), *prepared.range_paths(entry, sms))
            ),
            notes=tuple(self._notes),
        )
        self._folder.keep_answer(answer)
        return answer

    def _note(self, words: str) -> None:
        self._notes.append(words)
        self._display.note(words)


def _fits(environment: str, identity: GpuIdentity | None) -> bool:
    """Whether a program on the GPU would use what was measured there; so of every environment where no GPU is known."""
    return identity is None or (identity.measured(environment) is None and identity.compiled(environment) is None)


def _fitting(known: KnownKernels, identity: GpuIdentity | None) -> KnownKernels:
    """The library with the entries alone that a program on the GPU would use."""

    def find(task: GemmTask) -> LibraryEntry | None:
        entry = known.find(task)
        return entry if entry is not None and _fits(entry.evaluation.environment, identity) else None

    return known._replace(find=find)


def _without_entries(known: KnownKernels) -> KnownKernels:
    """Nothing of a library that is of another chip."""
    return known._replace(find=lambda _: None, algorithm=lambda _: None, padded_entry=lambda _: None, no_faster=frozenset())


def _floor(row: JudgedRange | None) -> int:
    return 0 if row is None else row.floor


def _lost(entry: LibraryEntry, identity: GpuIdentity, environment: str, why: str) -> JudgedProduct:
    return JudgedProduct(
        task=entry.task,
        entry=entry.id,
        chip=identity.gpu,
        environment=environment,
        speedup=None,
        fault=why,
        measured_at=datetime.now(UTC),
    )


def _untuned(task: GemmTask, identity: GpuIdentity, environment: str, why: str) -> TunedProduct:
    return TunedProduct(
        task=task,
        chip=identity.gpu,
        environment=environment,
        tried=0,
        faster=False,
        note=why,
        seconds=0.0,
        measured_at=datetime.now(UTC),
    )
