"""Entries with their built kernels, for machines that have no compiler."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from cudal2.library.library_form import CUBINS, cubin_name, plan_name
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.entry_choice import EntryChoice, LeftOut
from cudal2_agent.agent.library.preparing import library_cache, prepare, sms_for
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.settings.settings import Settings

NOT_BUILT = "it cannot be built here"


class ChoiceWithCubins(NamedTuple):
    """`files`: kernels and plans by name, for the folder of cubins."""

    choice: EntryChoice
    files: dict[str, bytes]


def with_cubins(choice: EntryChoice, settings: Settings) -> ChoiceWithCubins:
    """The entries with the hashes of their kernels, which come from the cache or are built now.

    Raises: CompilerMissing, MachineError, WorkerError.
    """
    if not choice.entries:
        return ChoiceWithCubins(choice, {})
    sms, kernels = sms_for(choice.entries[0].task.arch), PreparedKernels(library_cache(settings))
    failed = {one.id: one.message for one in prepare(choice.entries, settings, sms) if one.status == "failed"}
    left_out = [LeftOut(one.task, NOT_BUILT, failed[one.id]) for one in choice.entries if one.id in failed]
    entries, files = list[LibraryEntry](), dict[str, bytes]()
    for entry in choice.entries:
        if entry.id not in failed:
            content, plan = kernels.cubin_path(entry).read_bytes(), kernels.plan_path(entry, sms).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files[cubin_name(sha256)], files[plan_name(sha256, entry.task, sms)] = content, plan
            entries.append(entry.model_copy(update={"cubin_sha256": sha256}))
    ordered = tuple(sorted(entries, key=lambda entry: entry.id))
    return ChoiceWithCubins(EntryChoice(ordered, (*choice.left_out, *left_out)), files)


def built_kernels(library: Path) -> dict[str, bytes]:
    """The kernels and plans that lie in a library's folder, by name; nothing for a packed file."""
    folder = library / CUBINS
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())} if folder.is_dir() else {}
