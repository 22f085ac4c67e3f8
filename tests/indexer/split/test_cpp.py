"""Headers are cut at the ends of definitions, whatever macros are between them."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.indexer.split.split import SPLITTER, split_file
from tests.indexer.split.coverage import covered, lost, text_of

LICENCE = """/***************************************************************************************************
 * Copyright (c) 2020 Nobody. All rights reserved.
 * SPDX-License-Identifier: BSD-3-Clause
 **************************************************************************************************/
"""


def split(text: str, path: str = "ring/ring.hpp") -> SplitFile:
    return split_file(path, text.encode())


def symbols(text: str) -> list[str]:
    return [piece.symbol for piece in split(text).pieces]


def piece(found: SplitFile, symbol: str) -> Piece:
    return next(piece for piece in found.pieces if piece.symbol == symbol)


def body(lines: int, indent: str = "  ") -> str:
    return "\n".join(f"{indent}value_{number} = {number};" for number in range(lines))


def function(name: str, lines: int = 10, head: str = "CUTE_HOST_DEVICE void") -> str:
    return f"{head}\n{name}() {{\n{body(lines)}\n}}\n"


def test_the_record_carries_text_hash_and_splitter() -> None:
    found = split("int x;\n")
    assert found.text == "int x;\n"
    assert found.sha256 == hashlib.sha256(b"int x;\n").hexdigest()
    assert found.splitter == SPLITTER


def test_qualified_names_through_namespaces() -> None:
    text = f"namespace ring {{\nnamespace {{\n{function('free')}}}\nnamespace a::b {{\n{function('deep')}}}\n}}\n"
    assert symbols(text) == ["ring::free", "ring::a::b::deep"]


def test_a_comment_and_a_template_head_belong_to_what_follows() -> None:
    text = f"{function('before')}\n/// Waits for a stage.\n/// Not for two.\ntemplate <int N>\n{function('wait')}"
    found = text_of(split(text), "wait")
    assert found.startswith("/// Waits for a stage.")
    assert "template <int N>" in found


def test_a_comment_behind_a_member_stays_with_it() -> None:
    text = f"struct S {{\n  int first;  ///< of two\n{body(90)}\n}};\n"
    assert "///< of two" in text_of(split(text), "S")


def test_a_short_class_is_one_piece_with_its_members() -> None:
    found = split(f"/// A ring.\nstruct Ring {{\n  int head;\n{function('advance')}}};\n")
    assert [(p.symbol, p.kind, p.start_line) for p in found.pieces] == [("Ring", "class", 1)]
    assert "advance" in found.pieces[0].card
    assert found.pieces[0].definition == (1, found.pieces[0].end_line)


def test_a_long_class_is_a_head_and_its_methods() -> None:
    text = "struct Ring {\n  using T = int;\n" + "".join(function(f"step_{n}", 30) for n in range(3)) + "  int last;\n};\n"
    found = split(text)
    assert [p.symbol for p in found.pieces] == ["Ring", "Ring::step_0", "Ring::step_1", "Ring::step_2", "Ring::last"]
    head, first = found.pieces[:2]
    assert head.definition == (1, text.count("\n"))
    assert first.definition == (first.start_line, first.end_line)


def test_a_long_function_is_cut_into_parts_that_know_it() -> None:
    found = split(function("lengthy", 300))
    assert len(found.pieces) >= 5
    assert {(p.symbol, p.definition) for p in found.pieces} == {("lengthy", (1, 303))}
    assert all(20 <= p.end_line - p.start_line + 1 <= 60 for p in found.pieces)


def test_a_cut_prefers_a_blank_line() -> None:
    text = "void f() {\n" + "\n\n".join(body(9) for _ in range(12)) + "\n}\n"
    lines = text.split("\n")
    assert all(not lines[p.start_line - 2].strip() for p in split(text).pieces[1:])


def test_short_neighbours_are_one_piece_and_all_named() -> None:
    found = split("using A = int;\nusing B = long;\nusing Gamma = char;\n" + function("big", 40))
    assert [p.symbol for p in found.pieces] == ["A", "big"]
    assert "gamma" in found.pieces[0].card


def test_overloads_are_one_piece() -> None:
    text = "".join(f"CUTE_DEVICE int get(int a{n}) {{\n{body(8)}\n}}\n" for n in range(3))
    assert symbols(text) == ["get"]


@pytest.mark.parametrize(
    ("code", "symbol", "kind"),
    [
        ("template <> struct Traits<SM90_64x8x16<A, B<int>>, 3> {\n  int x;\n};", "Traits<SM90_64x8x16<…>, 3>", "class"),
        ("template < class T >\nstruct P< T * > { int x; };", "P<T *>", "class"),
        ("struct S { int x;\n" + "\n" * 3 + "CUTE_HOST_DEVICE bool operator==(S o) const { return 1; } };", "S", "class"),
        ("bool operator==(A a, B b) {\n  return a < b;\n}", "operator==", "function"),
        ("int& Outer<3>::inner() {\n  return x;\n}", "Outer<3>::inner", "function"),
        ("Ring::~Ring() {\n}", "Ring::~Ring", "function"),
        ("template <class T>\nusing Vec = Array<T, 4>;", "Vec", "alias"),
        ("typedef unsigned int uint;", "uint", "alias"),
        ("enum class Major {\n  K, MN\n};", "Major", "enum"),
        ("static constexpr int kStages = 4;", "kStages", "variable"),
        ("CUTE_INLINE_CONSTANT int kWays = 4;", "kWays", "variable"),
        ("int* later(int a);", "later", "function"),
        ("template <class T>\nconcept Small = sizeof(T) < 4;", "Small", "alias"),
        ("#define RING_CHECK(x) \\\n  do { \\\n    if (!(x)) fail(); \\\n  } while (0)", "RING_CHECK", "macro"),
        ("__global__ void __launch_bounds__(128, 1) kernel(float* __restrict__ p) {\n}", "kernel", "function"),
        ('extern "C" {\nint plain() {\n  return 1;\n}\n}', "plain", "function"),
        ("union Word { int i; float f; };", "Word", "class"),
        ("CUTLASS_HOST_DEVICE explicit operator float() const {\n  return 1;\n}", "operator float", "function"),
    ],
)
def test_constructs(code: str, symbol: str, kind: str) -> None:
    found = split(code + "\n")
    assert [(p.symbol, p.kind) for p in found.pieces] == [(symbol, kind)]
    assert not lost(found)


def test_methods_of_every_sort_are_named() -> None:
    text = (
        "struct S {\n"
        + function("S", head="CUTE_HOST_DEVICE")
        + function("~S", head="")
        + function("operator()", head="CUTE_DEVICE void")
        + "CUTE_DEVICE operator int() const {\n"
        + body(8)
        + "\n}\n"
        + function("many", 60, head="template <class... Ts>\nstatic constexpr auto")
        + "};\n"
    )
    methods = ["S::S", "S::~S", "S::operator()", "S::operator int", "S::many"]
    assert [symbol for symbol in symbols(text) if symbol != "S"] == methods


def test_branches_do_not_hide_definitions() -> None:
    text = f"#if defined(A)\n{function('one')}#if B\n{function('two')}#endif\n#else\n{function('three')}#endif\n"
    assert symbols(text) == ["one", "two", "three"]


def test_a_branch_inside_a_declaration() -> None:
    text = f"template <int I>\n#if !defined(M)\nconstexpr\n#endif\n{function('first')}{function('second')}"
    assert symbols(text) == ["first", "second"]


def test_branches_that_open_a_brace_each() -> None:
    text = "void f() {\n#if A\n  if (x) {\n#else\n  if (y) {\n#endif\n  }\n" + body(9) + "\n}\n" + function("after")
    assert symbols(text) == ["f", "after"]


def test_what_is_switched_off_is_text() -> None:
    found = split(f"{function('live')}#if 0\n}} }} struct Broken {{\n#endif\n{function('after')}")
    assert {"live", "after"} <= {p.symbol for p in found.pieces}
    assert not lost(found)


def test_guards_are_not_macros() -> None:
    found = split("#ifndef RING_H\n#define RING_H\n#include <x>\n" + function("f") + "#endif\n")
    assert [p.kind for p in found.pieces] == ["text", "function"]


def test_assertions_by_macro_do_not_break_a_class() -> None:
    text = (
        "namespace n {\ntemplate <class A>\nstruct Mma<A, 1> {\n  CUTE_STATIC_ASSERT_V(divides(T{}, shape(U{})),\n"
        f'      "Tile must divide.");\n  CUTE_ALIGNAS(128) char x[1];\n{function("load", 60)}{function("store", 60)}}};\n}}\n'
    )
    assert symbols(text) == ["n::Mma<A, 1>", "n::Mma<A, 1>::load", "n::Mma<A, 1>::store"]


def test_dependent_names_with_typename() -> None:
    text = (
        "template <typename T, typename U = int>\nstruct S : Base<typename T::A, typename T::template B<3>> {\n  int x;\n};\n"
    )
    assert symbols(text) == ["S"]


def test_broken_code_keeps_its_text_and_salvages_names() -> None:
    text = f"{function('good')}\nstruct Half : {{ ( [ \n{body(20)}\n\nnamespace late {{\n{function('still_found')}"
    found = split(text)
    assert not lost(found)
    assert "good" in {p.symbol for p in found.pieces}
    assert any("Half" in p.symbol for p in found.pieces)


def test_a_namespace_that_is_never_closed_still_names() -> None:
    assert "outer::f" in symbols("namespace outer {\n" + function("f") + function("g", 20))


def test_the_licence_is_left_out_and_the_head_names_the_file() -> None:
    found = split(LICENCE + "/*! \\file\n    \\brief Rings of stages.\n*/\n#pragma once\n#include <a.h>\n" + function("turn"))
    head = found.pieces[0]
    assert (head.kind, head.symbol, head.start_line) == ("text", "ring/ring.hpp", 5)
    assert "Rings of stages." in head.card
    assert "turn" in head.card
    assert lost(found) == [1, 2, 3, 4]


def test_only_a_licence() -> None:
    assert split(LICENCE).pieces == ()


def test_a_comment_that_is_no_licence_is_kept() -> None:
    found = split("// Rings, and how they turn.\n\nint x;\n")
    assert not lost(found)


def test_separators_and_closings_make_no_pieces() -> None:
    bar = "/" * 80
    first = f"namespace a {{\n\n{bar}\n\n{function('one')}\n{bar}\n\n}} // namespace a\n\n"
    text = f"{first}{bar}\n\nnamespace b {{\n{function('two')}}}\n{bar}\n"
    found = split(text)
    assert [p.symbol for p in found.pieces] == ["a::one", "b::two"]
    assert not lost(found)


def test_generated_siblings_share_a_family_and_others_do_not() -> None:
    wrappers = "".join(
        f"struct SM90_64x{n}x16_F32F16F16_SS {{\n{body(10)}\n}};\n\nstruct SM90_64x{n}x16_F32F16F16_RS {{\n{body(12)}\n}};\n\n"
        for n in range(8, 48, 8)
    )
    found = split(wrappers + f"struct Other {{\n{body(10)}\n}};\n")
    families = [p.family for p in found.pieces]
    assert len(families) == 11
    assert len(set(families[0:10:2])) == 1
    assert len(set(families[1:10:2])) == 1
    assert families[0] != families[1]
    assert families[-1] == ""


def test_three_siblings_are_no_family_and_neither_are_overloads() -> None:
    three = "".join(f"struct Op_{n}x8 {{\n{body(10)}\n}};\n" for n in (8, 16, 32))
    assert {p.family for p in split(three).pieces} == {""}
    overloads = "".join(f"void get(A{n}) {{\n{body(30)}\n}}\n" for n in range(6))
    assert {p.family for p in split(overloads).pieces} == {""}


def test_the_same_shape_in_another_file_is_another_family() -> None:
    wrappers = "".join(f"struct Op_{n} {{\n{body(10)}\n}};\n" for n in range(5))
    assert split(wrappers, "a.hpp").pieces[0].family != split(wrappers, "b.hpp").pieces[0].family


def test_parts_of_a_long_sibling_are_families_by_their_place() -> None:
    long = "".join(f"struct Op_{n} {{\n{function('fma', 120)}}};\n" for n in range(4))
    found = split(long)
    by_place = [p.family for p in found.pieces if p.start_line <= 124]
    assert len(by_place) == len(set(by_place)) > 1
    assert len({p.family for p in found.pieces}) == len(by_place)


@pytest.mark.parametrize("text", ["", "\n", "\n\n \t\n", ";", "}", "#", "#if", "#endif\n#else", "\x00\x00", "﻿", "\\\n"])
def test_next_to_nothing(text: str) -> None:
    assert len(split(text).pieces) <= 1


def test_line_ends_of_every_kind_tell_the_same() -> None:
    text = "namespace n {\n" + function("f") + "\n" + function("g") + "}\n"
    unix = split(text)
    for other in (text.replace("\n", "\r\n"), "\ufeff" + text, text.rstrip("\n"), text.replace("\n", "\r")):
        found = split(other)
        assert [(p.start_line, p.end_line, p.symbol) for p in found.pieces] == [
            (p.start_line, p.end_line, p.symbol) for p in unix.pieces
        ]


def test_other_scripts_and_tabs() -> None:
    found = split("// Überträgt die Kacheln: 日本語 🎉\nvoid größe() {\n\tint x = 1;\n}\n" + function("next"))
    assert not lost(found)
    assert found.pieces[0].card.count("日本語") == 1
    assert found.pieces[-1].symbol == "next"


def test_bytes_that_are_no_text() -> None:
    found = split_file("a.hpp", b"// f\xff\xfe\nint x;\n\xc3\x28\n" + bytes(range(256)))
    assert not lost(found)


def test_raw_strings_and_comments_with_directives_in_them() -> None:
    text = f'const char* source = R"(\n#if 0\nstruct Not {{\n)";\n/*\n#endif\n#if 0\n*/\n{function("real")}'
    assert "real" in symbols(text)


@pytest.mark.parametrize(
    "text",
    [
        "namespace a {\n" * 3000 + "int x;\n" + "}\n" * 3000,
        "struct A {\n" * 3000 + "int x;\n" + "};\n" * 3000,
        "void f() {\n" + "{\n" * 20000 + "}\n" * 20000 + "}\n",
        "int x = " + "(" * 20000 + "1" + ")" * 20000 + ";\n",
        "template <class T = " + "A<" * 5000 + "int" + ">" * 5000 + ">\nstruct S;\n",
        "#if A\n" * 5000 + "int x;\n" + "#endif\n" * 5000,
        "((((((((" * 10000,
        "/*" * 30000,
        "__launch_bounds__(" * 20000,
        "static_assert(" * 20000,
        "a::" * 50000,
        "#define A \\\n" * 20000,
        "/* # */\n#if A\n#endif\n" * 20000,
        "FOO(a, b);\n" * 20000,
        "struct A { int x; };\n" * 20000,
        " " * 300000 + "\n",
        "CUTE_ASSERT(" + "x" * 100000 + "\n",
    ],
    ids=lambda text: text[:12].strip(),
)
@pytest.mark.timeout(20)
def test_hostile_depth_and_length(text: str) -> None:
    assert not lost(split(text))


@pytest.mark.timeout(60)
def test_a_generated_header_of_sixty_thousand_lines() -> None:
    wrappers = "".join(f"struct SM90_64x{n}x16_F16F16F16_SS {{\n{function('fma', 112)}}};\n\n" for n in range(520))
    found = split(wrappers)
    assert found.text.count("\n") > 60_000
    assert not lost(found)
    assert all(p.family for p in found.pieces)


FRAGMENTS = st.sampled_from(
    """namespace n {;}|};|} // namespace n|struct A {|template <class T>|struct A<T, 3> : B {|int x;||/// says|/* opens
closes */|// bar|#if A|#else|#endif|#define M 1|#define N \\
void f() {|CUTE_HOST_DEVICE|static_assert(A, "must");|using T = int;
using namespace x;|enum class E { A, B };|public:|#include <x>|#pragma once|(|)|asm volatile("wgmma.mma_async.sync %0;");
operator int() const;|R"(|)"|FOO(a, b);|typename T::template X<3> y;|int a; int b;|struct P {}; struct Q {};
// Copyright (c) 2020|é|\t|""".replace("\n", "|").split("|")
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS, max_size=60), st.sampled_from([1, 1, 1, 30]))
def test_no_line_is_lost_or_told_twice(fragments: list[str], times: int) -> None:
    found = split("int first;\n" + "\n".join(fragment for fragment in fragments for _ in range(times)))
    assert not lost(found)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([".hpp", ".py", ".md", ".rst", ".html", ".txt", ""]))
def test_any_bytes_are_split(data: bytes, suffix: str) -> None:
    found = split_file("x" + suffix, data)
    assert covered(found) <= set(range(1, found.text.count("\n") + 2))
    assert suffix in (".md", ".rst", ".html") or not lost(found)  # documents leave out headings without text


def test_a_file_of_pytorch_s_cuda_kernels_is_split_at_its_kernels() -> None:
    """Bounds before `__global__`, loops by macros, dispatch over types, and macros that stand for a function's head."""
    source = f"""#include <ATen/core/Tensor.h>
namespace at::native {{
namespace {{
// The largest element of each window.
template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(1024)
__global__ void window_max_kernel(const scalar_t* in, scalar_t* out, int64_t count) {{
  CUDA_KERNEL_LOOP(index, count) {{
{body(10, "    ")}
  }}
}}

void window_max_out(const Tensor& in, const Tensor& out) {{
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, in.scalar_type(), "window_max", [&] {{
    window_max_kernel<scalar_t><<<1, 1024, 0, at::cuda::getCurrentCUDAStream()>>>(in.const_data_ptr<scalar_t>());
{body(10, "    ")}
  }});
}}
}}  // namespace

TORCH_IMPL_FUNC(window_max_out_cuda)(const Tensor& in, const Tensor& out) {{
{body(10)}
}}
REGISTER_DISPATCH(window_max_stub, &window_max_out)
}}  // namespace at::native
"""
    found = split(source, "aten/src/ATen/native/cuda/WindowMax.cu")
    kernel = text_of(found, "at::native::window_max_kernel")
    assert "C10_LAUNCH_BOUNDS_1" in kernel
    assert "The largest element" in kernel
    assert "AT_DISPATCH" in text_of(found, "at::native::window_max_out")
    assert not lost(found)
