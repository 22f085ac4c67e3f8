"""The device primitives of a prompt: signatures and comments, extracted from the headers."""

import re
from collections.abc import Iterator, Sequence

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from contract.task import Arch

Header = tuple[str, str]  # (name in the `#include`, text)
_ARCH = re.compile(r"\bsm_(?P<number>\d+)(?P<exact>a)?\b(?P<more> and up)?")
_DROPPED = frozenset({"preproc_include", "preproc_call", "preproc_def", "preproc_function_def"})
_LISTS = frozenset({"declaration_list", "field_declaration_list"})
_NOISE = re.compile(r"// clang-format |namespace cudal2 \{$|\}  // namespace cudal2$")
_QUALIFIERS = "__device__ __forceinline__ "  # the prompt says once that all functions have them
_INVOCATION = re.compile(r"(?P<macro>[A-Z][A-Z0-9_]+)\((?P<first>[^,()]+)[^()]*\)")


def primitives_for(arch: Arch, headers: Sequence[Header]) -> list[tuple[str, str]]:
    """(name, digest) of the headers for a target, headers for the newest targets first."""
    fitting = [(name, text) for name, text in headers if _fits(arch, text)]
    ordered = sorted(fitting, key=lambda header: (-_needs(header[1])[0], header[0]))
    return [(name, digest_of(text)) for name, text in ordered]


def digest_of(text: str) -> str:
    """A header without includes, macro definitions, function bodies and our namespace. The rest is unchanged.

    Consecutive invocations of one macro define a family of specialisations; only their first arguments are listed.
    """
    source = text.encode()
    parser = Parser(Language(tree_sitter_cuda.language()))
    lines = "".join(_kept(parser.parse(source).root_node, source)).splitlines()
    kept = [line.rstrip().replace(_QUALIFIERS, "") for line in _told_by_first_argument(lines)]
    return re.sub(r"\n{2,}", "\n", "\n".join(line for line in kept if not _NOISE.match(line))).strip()


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
    if node.type == "function_definition":
        body = node.child_by_field_name("body")
        end = body.start_byte if body else node.end_byte
        yield source[node.start_byte : end].decode().rstrip() + ";"
    elif node.type in _DROPPED:
        return
    elif not node.children or not _holds_more(node):
        yield source[node.start_byte : node.end_byte].decode()
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


def _told_by_first_argument(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with consecutive invocations of one macro joined into one comment."""
    row: list[str] = []
    macro = ""
    for line in [*lines, ""]:
        found = _INVOCATION.fullmatch(line.strip())
        if row and (not found or found["macro"] != macro):
            yield f"// {macro}(first argument: {', '.join(row)})"
            row = []
        if found:
            macro = found["macro"]
            row.append(found["first"].strip())
        else:
            yield line
