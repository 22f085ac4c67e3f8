"""What a model is told of a failure: its symptoms, the source lines it names, and a proven kernel beside it."""

from cudal2_agent.contract.records.evaluation import NOT_COVERED, TestResult, TimedOut, Wrong
from cudal2_agent.contract.records.symptoms import BarrierWait, Lines, Symptoms, WrongPlaces
from cudal2_agent.contract.records.trajectory import Attempt, Exemplar
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.prompts.failures import failure_text, proven_text
from tests.doubles import INSPECTION, OBSERVATION, candidate

WHOLE = 10**6
SOURCE = "\n".join(f"line {number};" for number in range(1, 41))
WAIT = BarrierWait(
    kind="mbarrier",
    barrier="mbarrier at byte 64 of shared memory",
    warps="warps 0-3 of CTA (0, 0, 0)",
    at="`mbarrier.try_wait` (mbarrier.cuh:49, called at kernel.cu:7 from kernel.cu:30)",
    phase=1,
    arrived=3,
    expected=4,
    missing_bytes=64,
    announced=16384,
    history=("initialised at `mbarrier.init` (kernel.cu:3)",),
)
PLACES = WrongPlaces(
    wrong=4096,
    outputs=16384,
    rows=Lines(first=8, last=127, count=60, of=128, modulus=16, residues=((8, 15),)),
    columns=Lines(first=64, last=127, count=64, of=128),
    tile=(8, 64),
    wrong_tiles=8,
    tiles=32,
    first_tiles=((1, 1), (3, 1)),
)


def wrong(symptoms: Symptoms | None, **fields: object) -> Wrong:
    failed = TestResult(tier="exact", name="zero-one", passed=False, message="4096 outputs are wrong", symptoms=symptoms)
    tests = (TestResult(tier="emulator", name=NOT_COVERED, passed=True), failed)
    return Wrong(test=failed, tests=tests, inspection=INSPECTION).model_copy(update=fields)


def test_places_are_told_by_class_tile_and_edge() -> None:
    text = failure_text(wrong(Symptoms(places=PLACES, values=("100% are zero",))), SOURCE, WHOLE)
    assert (
        "4096 of 16384 outputs are wrong; rows 8-15 of every 16, from 8 to 127; columns 64-127 of 128, the last columns only"
        in text
    )
    assert "8 of 32 tiles of 8x64, at (row, column) of tiles (1, 1), (3, 1)" in text
    assert "wrong outputs there: 100% are zero" in text


def test_what_was_not_covered_is_no_test_that_passed() -> None:
    text = failure_text(wrong(None), SOURCE, WHOLE)
    assert NOT_COVERED not in text
    assert "no test passed before" in text


def test_a_wait_is_told_with_its_barrier_and_its_source_lines() -> None:
    text = failure_text(wrong(Symptoms(waits=(WAIT,))), SOURCE, WHOLE)
    assert "1 phases are complete and phase 1 (parity 1) is open; 3 of 4 arrivals came, 1 missing" in text
    assert "64 of 16384 announced bytes have not come; initialised at" in text
    assert ">    7 | line 7;" in text
    assert ">    3 | line 3;" in text
    assert "line 30;" not in text  # only the outermost call stands there


def test_a_wait_in_a_loop_names_no_barrier() -> None:
    loop = BarrierWait(kind="none", barrier="no barrier", warps="warp 0 of CTA (0, 0, 0)", at="`ld.acquire` (kernel.cu:5)")
    late = TimedOut(stage="verify", limit_s=9.0, symptoms=Symptoms(waits=(loop,)))
    text = failure_text(late, SOURCE, WHOLE)
    assert "warp 0 of CTA (0, 0, 0) at `ld.acquire` (kernel.cu:5): no barrier is known to be waited for" in text
    assert ">    5 | line 5;" in text


def test_a_proven_kernel_is_shown_by_its_differences_if_these_are_few() -> None:
    proven = candidate(0).model_copy(update={"source": SOURCE})
    one = SOURCE.replace("\n", "\n// changed\n", 1)
    text = proven_text(one, proven, WHOLE)
    assert "The failed kernel differs from it by" in text
    assert "+// changed" in text
    other = proven_text("nothing\nof\nit", proven, WHOLE)
    assert "Its source" in other
    assert proven.source.splitlines()[0] in other


# A prompt records the exemplars that it contains.
def exemplar(number: int, lines: int) -> Exemplar:
    body = "\n".join(f"float value_{number}_{line};" for line in range(lines))
    one = candidate(number).model_copy(update={"source": f"// candidate {number}\n{body}"})
    attempt = Attempt(candidate_id=one.id, policy="p", schedule=None, status="measured", time_us=9.0)
    return Exemplar(candidate=one, attempt=attempt, bucket=number)


def test_only_those_that_fit() -> None:
    near, far = exemplar(1, 3), exemplar(2, 100_000)
    request = Prompts(24_000, ()).first(OBSERVATION, Assignment(0, None, (far, near)))
    assert request.exemplar_ids == (near.candidate.id,)
    assert "value_1_0" in request.prompt.messages[-1].content
    assert "value_2_0" not in request.prompt.messages[-1].content
