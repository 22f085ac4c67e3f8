"""A candidate in short."""

from cudal2_agent.contract.records.candidate import SHORT_CHARS, Origin
from tests.doubles import candidate


def test_a_label_shows_the_axes_in_use() -> None:
    schedule = {"family": "f", "block_m": 64, "block_n": 32, "block_k": 16, "stages": 4, "splits": 1, "tma": True, "pdl": False}
    one = candidate(0).model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": schedule})})
    assert one.label == "f 64x32x16 stages=4 tma"
    bare = candidate(0).model_copy(update={"origin": Origin(policy="file")})
    assert bare.label == f"file {bare.id[:8]}"


def test_a_short_name_is_the_label_as_far_as_it_fits() -> None:
    schedule = {"family": "f", "block_m": 64, "block_n": 32, "block_k": 16, "stages": 4, "splits": 2, "tma": True}
    one = candidate(0).model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": schedule})})
    assert one.short_name == one.label == "f 64x32x16 stages=4 splits=2 tma"
    longer = {**schedule, "programmatic": True}
    more = one.model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": longer})})
    assert more.short_name == "f 64x32x16 stages=4 splits=2 tma …"
    assert len(more.short_name) <= SHORT_CHARS < len(more.label)
    assert candidate(0).model_copy(update={"origin": Origin(policy="chat")}).short_name == f"chat {candidate(0).id[:8]}"


def test_an_id_follows_each_part_of_the_code_and_no_other() -> None:
    one = candidate(0)
    launch = one.plan.launches[0].model_copy(update={"programmatic": not one.plan.launches[0].programmatic})
    plan = one.plan.model_copy(update={"launches": (launch, *one.plan.launches[1:])})
    changes = ({}, {"source": one.source + " "}, {"flags": ("-DX",)}, {"compiler": "nvcc"}, {"plan": plan})
    assert len({one.model_copy(update=change).id for change in changes}) == len(changes)
    assert one.model_copy(update={"origin": Origin(policy="other")}).id == one.id
