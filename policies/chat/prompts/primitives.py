"""The device primitives of a prompt: signatures and comments, extracted from the headers.

A header's first line says what it is for and which target it needs. Text between `clang-format off` and `clang-format on` is
generated code, and is left out with every explicit specialisation: the primary template and its comment say what exists.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from cudal2_agent.contract.records.task import Arch

Header = tuple[str, str]  # (name in the `#include`, text)
_ARCH = re.compile(r"\bsm_(?P<number>\d+)(?P<exact>a)?\b(?P<more> and up)?")
_WORD = re.compile(r"\w+")
_INCLUDED = re.compile(r"#\s*include\s*<([^<>]+)>")
_DROPPED = frozenset({"preproc_include", "preproc_call", "preproc_def", "preproc_function_def", "static_assert_declaration"})
_LISTS = frozenset({"declaration_list", "field_declaration_list"})
_GENERATED = re.compile(r"// clang-format off\n.*?// clang-format on\n", re.DOTALL)
_NOISE = re.compile(r"namespace cudal2 \{$|\}  // namespace cudal2$|//$")
_CALL = re.compile(r"(?P<name>[^()]*\w)\((?P<parameters>[^()]*)\);")
_QUALIFIERS = "__device__ __forceinline__ "  # the prompt says once that all functions have them


@dataclass(frozen=True)
class Digest:
    """What a prompt tells of a header. `text`: with comments; `brief`: its declarations alone.

    `kept`: whether its declarations always have room, as where a kernel that the prompt shows includes it.
    """

    name: str
    text: str
    brief: str
    kept: bool = False


def primitives_for(arch: Arch, headers: Sequence[Header], *, hand: str = "", skeleton: str = "") -> list[Digest]:
    """The headers for a target: first those that a kernel shown includes, then those for the newest targets.

    Of the first the longest come first: what needs most words is the hardest to guess.

    `hand`: the source of the kernel in hand; `skeleton`: that of an example. Of a header that the kernel in hand includes, the
    comments are of what the kernel uses. Headers for older targets than one that either of the two includes have none.
    """
    fitting = [(name, text) for name, text in headers if _fits(arch, text)]
    known = set(_INCLUDED.findall(hand))
    shown = known.union(_INCLUDED.findall(skeleton))
    ordered = sorted(fitting, key=lambda header: (header[0] not in shown, -_needs(header[1])[0], header[0]))
    newest = max((_needs(text)[0] for name, text in ordered if name in shown), default=0)
    used = frozenset(_WORD.findall(hand))
    made = []
    for name, text in ordered:
        lines = _lines_of(text)
        brief = "\n".join(line for line in lines if not line.startswith("//"))
        whole = _of_used(lines, used) if name in known else "\n".join(lines)
        made.append(Digest(name, brief if name not in known and _needs(text)[0] < newest else whole, brief, name in shown))
    return sorted(made, key=lambda one: -len(one.text) if one.kept else 1)


def digest_of(text: str) -> str:
    """A header's comments and declarations, one line each."""
    return "\n".join(_lines_of(text))


def _lines_of(text: str) -> list[str]:
    source = _GENERATED.sub("", text).encode()
    parser = Parser(Language(tree_sitter_cuda.language()))
    kept = "".join(_kept(parser.parse(source).root_node, source)).replace(_QUALIFIERS, "").splitlines()
    return _merged([line for line in _joined(kept) if line.strip() and not _NOISE.match(line)])


def _of_used(lines: Sequence[str], used: frozenset[str]) -> str:
    """The declarations, with the opening comment and the comments of those that a kernel uses."""
    kept: list[str] = []
    for place, (comments, declared) in enumerate(_groups(lines)):
        wanted = place == 0 or used.intersection(_WORD.findall("\n".join(declared)))
        kept += [*(comments if wanted else ()), *declared]
    return "\n".join(kept)


def _groups(lines: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Comments with the declarations up to the next comment."""
    comments, declared = list[str](), list[str]()
    for line in lines:
        if line.startswith("//") and declared:
            yield comments, declared
            comments, declared = [], []
        (comments if line.startswith("//") else declared).append(line)
    yield comments, declared


def _fits(arch: Arch, text: str) -> bool:
    number, exact = _needs(text)
    return number == arch.number if exact else number <= arch.number


def _needs(text: str) -> tuple[int, bool]:
    """The target that a header's opening comment names, and whether the header is for this target only (`sm_90a`)."""
    opening = re.match(r"(?://[^\n]*\n)*", text)
    found = _ARCH.search(opening[0] if opening else "")
    return (int(found["number"]), bool(found["exact"] and not found["more"])) if found else (0, False)


def _kept(node: Node, source: bytes) -> Iterator[str]:
    """The text of a node without the parts that signatures do not need. White space between children stays."""
    text = source[node.start_byte : node.end_byte].decode()
    if node.type == "function_definition":
        body = node.child_by_field_name("body")
        end = body.start_byte if body else node.end_byte
        yield source[node.start_byte : end].decode().rstrip() + ";"
    elif node.type in _DROPPED or (node.type == "template_declaration" and text.startswith("template <>")):
        return
    elif not node.children or not _holds_more(node):
        yield text
    else:
        at = node.start_byte
        for child in node.children:
            yield source[at : child.start_byte].decode()
            yield from _kept(child, source)
            at = child.end_byte
        yield source[at : node.end_byte].decode()


def _holds_more(node: Node) -> bool:
    """Whether a node can contain a function or a directive."""
    return node.type in _LISTS or node.type in {
        "translation_unit",
        "namespace_definition",
        "template_declaration",
        "struct_specifier",
        "class_specifier",
    }


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with each declaration on one line, its template's parameters included."""
    begun = ""
    for line in lines:
        text = line.strip() if begun else line.rstrip()
        if not text or text.lstrip().startswith("//"):
            if begun:
                yield begun
            yield text
            begun = ""
            continue
        begun = f"{begun} {text}" if begun else text
        if not begun.endswith((",", ">")) and begun.count("(") == begun.count(")"):
            yield begun
            begun = ""
    if begun:
        yield begun


def _merged(lines: Sequence[str]) -> list[str]:
    """The lines, with an overload that only adds last parameters told as optional ones of the first: `f(int x[, int y]);`."""
    merged: list[str] = []
    first: dict[str, tuple[int, str]] = {}
    for line in lines:
        call = _CALL.fullmatch(line)
        if call and call["name"] in first:
            place, parameters = first[call["name"]]
            if call["parameters"].startswith(f"{parameters}, "):
                merged[place] = f"{call['name']}({parameters}[{call['parameters'].removeprefix(parameters)}]);"
                continue
        if call:
            first[call["name"]] = len(merged), call["parameters"]
        merged.append(line)
    return merged
