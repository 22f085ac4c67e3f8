"""A prompt records the exemplars that it contains."""

from cudal2_agent.contract.records.trajectory import Attempt, Exemplar
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from tests.doubles import OBSERVATION, candidate


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
