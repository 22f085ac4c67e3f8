"""The digest of the device headers lists all that they offer."""

import re
from pathlib import Path

import pytest

from contract.task import Arch
from policies.chat.prompts.primitives import digest_of, primitives_for

FOLDER = Path(__file__).resolve().parents[4] / "sandbox" / "include" / "cudal2"
HEADERS = [(f"cudal2/{path.name}", path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.cuh"))]


@pytest.mark.parametrize(("name", "text"), HEADERS, ids=[name for name, _ in HEADERS])
def test_every_function_and_type_is_in_and_no_body(name: str, text: str) -> None:
    digest = digest_of(text)
    code = re.sub(r"//[^\n]*", "", text)
    offered = set(re.findall(r"__forceinline__[^;{}()]*?\b(\w+)(?:<\w+>)?\(", code)) | set(
        re.findall(r"\bstruct (?:alignas\(\d+\) )?(\w+)", code)
    )
    assert offered, name
    assert all(re.search(rf"\b{word}\b", digest) for word in offered)
    assert not re.search(r"\basm\b|\breturn\b|#define|#include|#pragma", re.sub(r"//[^\n]*", "", digest))
    assert text.split("\n")[0] in digest


def test_only_what_the_target_has() -> None:
    names = {arch: {Path(name).stem for name, _ in primitives_for(arch, HEADERS)} for arch in Arch}
    assert {"mma", "ldmatrix", "cp_async", "swizzle"} <= names[Arch.SM_80]
    assert not {"wgmma", "tma", "mbarrier", "stmatrix", "registers", "programmatic"} & names[Arch.SM_89]
    assert {"wgmma", "tma", "mbarrier", "cluster"} <= names[Arch.SM_90A]
    assert "tma" in names[Arch.SM_100A]
    assert "wgmma" not in names[Arch.SM_100A]


def test_a_header_without_a_target_is_for_all() -> None:
    text = "// Useful.\n#pragma once\nnamespace cudal2 {\n__device__ int one() { return sm_90(); }\n}\n"
    assert primitives_for(Arch.SM_80, [("cudal2/one.cuh", text)]) == [
        ("cudal2/one.cuh", "// Useful.\n__device__ int one();\n}")
    ]


def test_specialisations_that_a_macro_makes_are_told() -> None:
    wgmma = digest_of(dict(HEADERS)["cudal2/wgmma.cuh"])
    assert re.search(r"F32\(first argument: 16, 32, .*256\)", wgmma)


def test_what_does_not_parse_is_still_told() -> None:
    assert "mystery" in digest_of("// x\n@@ mystery ((( \n")
    assert digest_of("") == ""
