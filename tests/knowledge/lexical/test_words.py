"""Identifiers are found whole, in parts, and in either spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.knowledge.lexical.words import STOP_WORDS, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cp.async.bulk", ["cp.async.bulk", "cp.async", "cp", "async", "bulk"]),
        ("stageCount", ["stagecount", "stage", "count"]),
        ("cuTensorMapEncodeTiled", ["cutensormapencodetiled", "cu", "tensor", "map", "encode", "tiled"]),
        ("HGEMMKernel", ["hgemmkernel", "hgemm", "kernel"]),
        ("wait_group", ["wait_group", "wait", "group"]),
        ("cute::Layout", ["cute::layout", "cute", "layout"]),
        ("__syncthreads()", ["syncthread"]),
        ("sm_90a", ["sm_90a", "sm", "90a"]),
        ("m16n8k16 f16 B200 TMA", ["m16n8k16", "f16", "b200", "tma"]),
        ("SMs, CTAs", ["sm", "cta"]),
        ("fp16 bfloat16 float32", ["f16", "bf16", "f32"]),
        ("serialized specialization sizes", ["serialised", "specialisation", "sise"]),
        ("128-byte swizzles", ["128", "byte", "swizzle"]),
        ("entries bus loss axes", ["entry", "bus", "loss", "axe"]),
        ("what is the of it", []),
        ("... :: __ -- ", []),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text(max_size=200))
def test_any_text_gives_words_that_are_not_empty(text: str) -> None:
    assert all(word and word not in STOP_WORDS for word in words_of(text))


@given(st.from_regex(r"[a-z]{2,8}(\.[a-z]{2,8}){1,4}", fullmatch=True))
def test_a_dotted_name_is_found_by_each_of_its_beginnings(name: str) -> None:
    parts = name.split(".")
    found = words_of(f"see {name} there")
    for end in range(2, len(parts) + 1):
        assert ".".join(parts[:end]) in found or ".".join(parts[:end]) in STOP_WORDS
