"""The digest of the device headers lists all that they offer."""

import re
from pathlib import Path

import pytest

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.chat.prompts.primitives import Digest, digest_of, primitives_for

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
    names = {arch: {Path(one.name).stem for one in primitives_for(arch, HEADERS)} for arch in Arch}
    assert {"mma", "ldmatrix", "cp_async", "swizzle"} <= names[Arch.SM_80]
    assert not {"wgmma", "tma", "mbarrier", "stmatrix", "registers", "programmatic"} & names[Arch.SM_89]
    assert {"wgmma", "tma", "mbarrier", "cluster"} <= names[Arch.SM_90A]
    assert "tma" in names[Arch.SM_100A]
    assert "wgmma" not in names[Arch.SM_100A]


def test_a_header_without_a_target_is_for_all() -> None:
    text = "// Useful.\n#pragma once\nnamespace cudal2 {\n__device__ int one() { return sm_90(); }\n}\n"
    assert primitives_for(Arch.SM_80, [("cudal2/one.cuh", text)]) == [
        Digest("cudal2/one.cuh", "// Useful.\n__device__ int one();\n}", "__device__ int one();\n}")
    ]


def test_specialisations_are_told_by_their_template_and_no_macro_leaks() -> None:
    text = dict(HEADERS)["cudal2/wgmma.cuh"]
    wgmma = digest_of(text)
    assert "CUDAL2_" not in wgmma
    assert "%0" not in wgmma
    assert "static void run(Register (&d)[kRegisters], unsigned long long a, unsigned long long b, int accumulate);" in wgmma
    assert "// kN: every multiple of 8 from 8 to 256\n" in wgmma
    for kind in ("F32", "F16"):
        widths = re.findall(rf"^CUDAL2_WGMMA_{kind}\((\d+)", text, re.MULTILINE)
        assert [int(width) for width in widths] == list(range(8, 257, 8))
    assert not re.search(r"template <>|round_to<", digest_of(dict(HEADERS)["cudal2/convert.cuh"]))


def test_a_declaration_is_one_line_and_an_overload_is_an_optional_parameter() -> None:
    tma = digest_of(dict(HEADERS)["cudal2/tma.cuh"]).splitlines()
    [load] = [line for line in tma if "tma_load_multicast(" in line]
    assert load.endswith("int x, int y, unsigned short cta_mask[, unsigned long long policy]);")
    assert "template <int kPending> void tma_store_wait();" in tma


INCLUDES = "#include <cudal2/cluster.cuh>\n#include <cudal2/wgmma.cuh>\n"


def digests(**shown: str) -> dict[str, str]:
    return {Path(one.name).stem: one.text for one in primitives_for(Arch.SM_90A, HEADERS, **shown)}


def test_a_skeletons_headers_have_all_comments_and_older_ones_none() -> None:
    whole, skeleton = digests(), digests(skeleton=INCLUDES)
    assert {name for name in whole if skeleton[name] != whole[name]} >= {"mma", "ldmatrix", "cp_async", "swizzle"}
    assert all(skeleton[name] == whole[name] for name in ("cluster", "wgmma", "mbarrier", "tma"))
    assert [*skeleton][:3] == ["wgmma", "cluster", "bulk"], "what a kernel shown includes comes first"


def test_what_the_kernel_in_hand_uses_keeps_its_comments_and_the_rest_of_its_headers_is_brief() -> None:
    whole = digests()
    hand = digests(hand=f"{INCLUDES}gemm() {{ store_remote_async(to, value, barrier); wgmma_wait<0>(); }}\n")
    assert "// Pushes 16 aligned bytes to a peer without waiting (st.async)" in hand["cluster"]
    assert "void cluster_meet();" in hand["cluster"]
    assert "// As cluster_sync, but publishes no writes" not in hand["cluster"]
    assert hand["cluster"].splitlines()[0] == whole["cluster"].splitlines()[0], "what the header is for"
    assert "// Waits until at most kPending groups are in flight." in hand["wgmma"]
    assert "//   operand                          rows along" not in hand["wgmma"]
    assert hand["tma"] == whole["tma"]
    assert digests(hand="#include <cudal2/mma.cuh>\n")["wgmma"] == whole["wgmma"]


def test_a_brief_digest_is_its_declarations() -> None:
    [elect] = [one for one in primitives_for(Arch.SM_90A, HEADERS) if one.name == "cudal2/elect.cuh"]
    assert elect.brief == "bool elect_one();"


def test_what_does_not_parse_is_still_told() -> None:
    assert "mystery" in digest_of("// x\n@@ mystery ((( \n")
    assert digest_of("") == ""
