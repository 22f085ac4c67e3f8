"""How long a worker may work on a call before it counts as lost, by the limits that it keeps itself.

They are the last resort: a worker ends what does not end, and says so. What it waits for the GPU does not count.
"""

from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.sandbox.remote.calls import (
    ArtifactCall,
    BuildCall,
    ExecuteCall,
    FarCall,
    LibraryProfileCall,
    Opening,
    ProfileCall,
    ProveCall,
)
from cudal2_agent.sandbox.workers.messages import LOAD_TIMEOUT_S, PREPARE_TIMEOUT_S, Stage, references_s

STARTS_S = 600.0  # of a sandbox and its workers, three attempts each
BUILD_S = 300.0  # beside the compiler's limit: inspection, waiting for other compilers
ATTEMPTS = 2  # a worker that is lost before it looked at a candidate is started again
_STAGES: tuple[Stage, ...] = ("prepare", "load", "verify", "time", "recheck")


def limit_s(call: FarCall) -> float:
    """Seconds of work."""
    opening, deed = call.opening, call.deed
    match deed:
        case BuildCall(candidates=candidates, ahead=False):
            return STARTS_S + len(candidates) * _build_s(opening)
        case BuildCall(candidates=candidates, task=task):
            proof_s = ATTEMPTS * 2 * (opening.emulate_timeout_s + LOAD_TIMEOUT_S)
            return STARTS_S + len(candidates) * (_build_s(opening) + ATTEMPTS * _executed_s(opening, task) + proof_s)
        case ExecuteCall(candidates=candidates, task=task):
            return STARTS_S + len(candidates) * (_build_s(opening) + ATTEMPTS * _executed_s(opening, task))
        case ProveCall():
            return STARTS_S + 2 * _build_s(opening) + ATTEMPTS * (opening.emulate_timeout_s + LOAD_TIMEOUT_S) * 2
        case ProfileCall() | LibraryProfileCall():
            return STARTS_S + _build_s(opening) + 4 * opening.profile_timeout_s
        case ArtifactCall():
            return STARTS_S + _build_s(opening)
        case _:
            return STARTS_S


def _build_s(opening: Opening) -> float:
    return opening.compile_timeout_s + BUILD_S


def _executed_s(opening: Opening, task: Task) -> float:
    """All stages of a candidate on a GPU, or its proof where the emulator stands in for one."""
    references = sum(references_s(task, stage) for stage in _STAGES)
    on_gpu = PREPARE_TIMEOUT_S + LOAD_TIMEOUT_S + 2 * opening.verify_timeout_s + opening.time_timeout_s + references
    return max(on_gpu, 2 * (opening.emulate_timeout_s + LOAD_TIMEOUT_S))
