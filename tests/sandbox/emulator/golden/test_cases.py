"""The description of the golden cases: whole, compilable, the same everywhere, and its references are right."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.agreement import differences, disagreements
from tests.sandbox.emulator.golden.case import MapSpec, Within, raw
from tests.sandbox.emulator.golden.compiled import compile_family
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.families import families, family
from tests.sandbox.emulator.golden.sources import HEADER, source
from tests.sandbox.emulator.golden.store import Record, add_records, fingerprint, load, load_records, save

NAMES = [one.name for one in families()]
EVERY_CASE = [case for one in families() for case in one.cases]


@pytest.mark.parametrize("name", NAMES)
def test_a_family_compiles_and_each_of_its_kernels_has_a_case(name: str) -> None:
    ptx = compile_family(family(name), "compute_90a").ptx
    entries = set(re.findall(r"\.visible \.entry (\w+)\(", ptx))
    assert entries == {case.kernel for case in family(name).cases}


def test_names_are_unique() -> None:
    names = [case.name for case in EVERY_CASE]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", NAMES)
def test_what_numpy_expects_fits_the_output_and_agrees_with_itself(name: str) -> None:
    expecting = [case for case in family(name).cases if case.expected]
    assert expecting
    for case in expecting[:: max(1, len(expecting) // 20)]:
        before_in, before_out = case.buffers()
        result = before_out.copy()
        expected = case.expected(before_in, before_out)  # type: ignore[misc]
        result[: expected.nbytes] = expected
        assert list(differences(case, before_in, before_out, result)) == [], case.name
        assert list(disagreements(case, before_in, result, result)) == [], case.name


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_bit_is_seen(name: str) -> None:
    case = next(case for case in family(name).cases if case.expected and case.comparison is None)
    given_in, before = case.buffers()
    result = before.copy()
    expected = case.expected(given_in, before)  # type: ignore[misc]
    result[: expected.nbytes] = expected
    changed = result.copy()
    changed[expected.nbytes // 2] ^= 1
    assert list(disagreements(case, given_in, result, changed))
    assert list(differences(case, given_in, before, changed))


def test_inputs_are_the_same_on_every_machine() -> None:
    """Values of PCG64's raw stream, which numpy promises to keep, and what is made of them."""
    assert Draw(1).words(2).tolist() == [9441442522235856127, 17532960557476522086]
    assert [hex(word) for word in Draw(2).column("f32", 400)[-1:]] == ["0x9e295073"]


def test_a_fingerprint_follows_source_and_inputs() -> None:
    one = family("matrices")
    assert fingerprint(one) == fingerprint(family("matrices"))
    other = type(one)(one.name, one.source + " ", one.cases)
    fewer = type(one)(one.name, one.source, one.cases[1:])
    assert len({fingerprint(one), fingerprint(other), fingerprint(fewer)}) == 3


def test_outputs_survive_the_file(tmp_path) -> None:
    one = family("mbarriers")
    outputs = {case.name: case.buffers()[1] + np.uint8(at) for at, case in enumerate(one.cases[1:])}
    save(tmp_path, one, outputs)
    kept = load(one, tmp_path)
    assert kept.keys() == outputs.keys()
    assert all((kept[name] == outputs[name]).all() for name in outputs)


def test_a_family_recorded_later_leaves_the_records_of_others(tmp_path) -> None:
    common = {"gpu": "H200", "driver": "13.0", "driver_release": "580", "nvrtc": "13.0", "commit": "c", "date": "2026-11-21"}
    first, second = (Record(fingerprint=name, **common) for name in ("one", "two"))
    add_records(tmp_path, {"mma": first, "warp": first})
    add_records(tmp_path, {"warp": second})
    assert load_records(tmp_path) == {"mma": first, "warp": second}
    assert load_records(tmp_path / "nowhere") == {}


def test_headers_parameters_are_the_size_the_recorder_passes() -> None:
    assert "int v[8];" in source(HEADER)
    assert all(len(case.numbers) <= 8 for case in EVERY_CASE)


def test_maps_are_ones_that_the_driver_takes() -> None:
    """Rules of cuTensorMapEncodeTiled: 16-byte strides and addresses, boxes of up to 256, rows that fit the swizzle."""
    maps = [spec for case in EVERY_CASE for spec in case.maps]
    assert maps
    for spec in maps:
        size = {"u8": 1, "f16": 2, "bf16": 2, "u16": 2, "f32": 4, "u32": 4, "s32": 4, "u64": 8, "s64": 8}[spec.element]
        assert len(spec.strides) == len(spec.sizes) - 1 == len(spec.box) - 1
        assert all(stride % 16 == 0 for stride in spec.strides)
        assert spec.offset % 16 == 0
        assert max(spec.box) <= 256
        assert spec.box[0] * size % 16 == 0
        assert not spec.swizzle or spec.box[0] * size <= spec.swizzle
        assert _covers(spec, size)


def _covers(spec: MapSpec, size: int) -> bool:
    """Every stride is at least what the dimensions below it need."""
    extents = [size * spec.sizes[0], *(stride * length for stride, length in zip(spec.strides, spec.sizes[1:], strict=True))]
    return all(stride >= extent for stride, extent in zip(spec.strides, extents, strict=False))


FLOATS = st.integers(0, (1 << 32) - 1)


def _f32(bits: int) -> np.float32:
    return np.array([bits], np.uint32).view(np.float32)[0]


def _same(bits: int, value: np.floating) -> bool:
    theirs = int(np.asarray(value).view(f"u{value.nbytes}"))
    return bits == theirs or bool(np.isnan(value) and bits == exact.FORMATS["f32" if value.nbytes == 4 else "f16"].nan)


@given(FLOATS, FLOATS)
def test_exact_sums_products_and_quotients_are_numpys(a: int, b: int) -> None:
    form, x, y = exact.F32, exact.decode(a, exact.F32), exact.decode(b, exact.F32)
    with np.errstate(all="ignore"):
        assert _same(exact.encode(exact.add(x, y), form), _f32(a) + _f32(b))
        assert _same(exact.encode(exact.multiply(x, y), form), _f32(a) * _f32(b))
        assert _same(exact.encode(exact.divide(x, y), form), _f32(a) / _f32(b))
        assert _same(exact.encode(exact.root(x, form), form), np.sqrt(_f32(a)))


@given(FLOATS)
def test_exact_narrowing_is_numpys(a: int) -> None:
    with np.errstate(all="ignore"):
        assert _same(exact.encode(exact.decode(a, exact.F32), exact.F16), _f32(a).astype(np.float16))


@given(FLOATS, st.sampled_from(["rz", "rm", "rp"]))
def test_directed_roundings_enclose_the_value(a: int, mode: exact.Mode) -> None:
    value = exact.decode(a, exact.F32)
    if value.nan or value.magnitude is None:
        return
    rounded = exact.decode(exact.encode(value, exact.BF16, mode), exact.BF16)
    if mode == "rz":
        assert rounded.magnitude is not None
        assert rounded.magnitude <= value.magnitude
    elif rounded.magnitude is not None:
        assert rounded.number <= value.number if mode == "rm" else rounded.number >= value.number
    else:
        assert rounded.negative == (mode == "rm")


def test_a_bound_passes_what_lies_within_it_and_nothing_else() -> None:
    case = next(case for case in family("mma").cases if isinstance(case.comparison, Within) and "normals" in case.name)
    given_in, before = case.buffers()
    golden = case.expected(given_in, before)  # type: ignore[misc]
    slack = case.comparison.slack(given_in, golden)
    values = golden.view(np.float32).astype(np.float64)
    near, far = (raw((values + factor * slack).astype(np.float32)) for factor in (0.5, 2.0))
    assert list(disagreements(case, given_in, golden, near)) == []
    assert list(disagreements(case, given_in, golden, far))
